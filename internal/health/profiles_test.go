package health

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestProfiles(t *testing.T) {
	get := func(on bool, method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler(&Options{Profiles: on, Status: func() any { return 1 }, Timeout: time.Second}).ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w
	}
	assert.Equal(t, http.StatusNotFound, get(false, "GET", "/debug/pprof/").Code)
	assert.Equal(t, http.StatusNotFound, get(false, "GET", "/debug/pprof/heap").Code)
	assert.Contains(t, get(true, "GET", "/debug/pprof/").Body.String(), "goroutine")
	assert.Equal(t, http.StatusOK, get(true, "GET", "/debug/pprof/heap").Code)
	assert.NotEmpty(t, get(true, "GET", "/debug/pprof/profile?seconds=0.1").Body.Bytes())
	assert.Equal(t, http.StatusBadRequest, get(true, "GET", "/debug/pprof/profile?seconds=301").Code)
	assert.Equal(t, http.StatusBadRequest, get(true, "GET", "/debug/pprof/trace?seconds=x").Code)
	assert.Equal(t, http.StatusNotFound, get(true, "GET", "/debug/pprof/cmdline").Code)
	assert.Equal(t, http.StatusMethodNotAllowed, get(true, "POST", "/debug/pprof/heap").Code)
}
