package health

import (
	"context"
	"net/http"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// page answers a scraper. Making the page has the time of one request; a scraper that meets a slow one hears 503 in time and
// comes again.
func page(o *Options, r *http.Request) (int, string, string) {
	ctx, cancel := context.WithTimeout(r.Context(), o.Timeout)
	defer cancel()
	kind, body, err := o.Metrics(ctx, r.Header.Get("Accept"))
	switch fault.CodeOf(err) {
	case 0:
		return http.StatusOK, kind, string(body)
	case fault.DeadlineExceeded, fault.Cancelled:
		return http.StatusServiceUnavailable, plain, "the metrics could not be gathered in time\n"
	}
	o.Logger.Error("metrics cannot be shown", "error", err)
	return http.StatusInternalServerError, plain, "the metrics cannot be shown\n"
}
