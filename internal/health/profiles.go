package health

import (
	"context"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"time"
)

const (
	profilesPath = "/debug/pprof/"
	// maxProfile bounds how long a profile runs: it costs the process a few percent.
	maxProfile = 5 * time.Minute
)

// profile answers requests below profilesPath. Profiles take their time, so this answer has a deadline of its own; the
// server's would refuse them, and is hidden from the handler for that.
func profile(o *Options, w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, profilesPath)
	if r.Method != http.MethodGet && r.Method != http.MethodHead && (name != "symbol" || r.Method != http.MethodPost) {
		w.Header().Set("Allow", "GET, HEAD")
		write(w, r, http.StatusMethodNotAllowed, plain, "only GET and HEAD\n")
		return
	}
	runs := 30 * time.Second // what profile takes when nothing is said
	if s := r.FormValue("seconds"); s != "" {
		seconds, err := strconv.ParseFloat(s, 64)
		if err != nil || seconds <= 0 || seconds > maxProfile.Seconds() {
			write(w, r, http.StatusBadRequest, plain, "seconds: allowed are numbers above 0 and up to "+strconv.Itoa(int(maxProfile.Seconds()))+"\n")
			return
		}
		runs = time.Duration(seconds * float64(time.Second))
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(runs + o.Timeout))
	r = r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, nil))
	switch name {
	case "profile":
		pprof.Profile(w, r)
	case "trace":
		pprof.Trace(w, r)
	case "cmdline": // flags may name files that are nobody's business
		write(w, r, http.StatusNotFound, plain, "not found\n")
	case "symbol":
		pprof.Symbol(w, r)
	default:
		pprof.Index(w, r)
	}
}
