package wire

import "strings"

// Absence is a provider that a node would have and cannot use.
type Absence struct {
	Provider string `json:"provider"`
	Why      string `json:"why"` // for people
}

// Unregistered is a provider that refused to register memory of clients.
type Unregistered struct {
	Provider string `json:"provider"`
	Regions  int    `json:"regions"` // that are there now
	Why      string `json:"why"`     // of one of them
}

// Text cuts s to what a field of text may hold, as valid UTF-8.
func Text(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText]
	}
	return strings.ToValidUTF8(s, "")
}
