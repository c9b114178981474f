//go:build kvxfer_next

package version

// Next says whether this build plays the next version.
const Next = true

// NextTag is the build tag of this file.
const NextTag = "kvxfer_next"

const unknownField = `"next_field":{"deep":[1,"two",null]}`

// WithUnknownFields puts a field that no version knows into every object of raw, which is JSON or empty; of nothing it
// makes an object, since a later version may have something to say where this one has not.
func WithUnknownFields(raw []byte) []byte {
	if len(raw) == 0 {
		return []byte("{" + unknownField + "}")
	}
	out := make([]byte, 0, len(raw)+len(unknownField)+1)
	text := false
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		out = append(out, c)
		switch {
		case text && c == '\\':
			i++
			out = append(out, raw[i])
		case c == '"':
			text = !text
		case c == '{' && !text:
			out = append(out, unknownField...)
			if raw[i+1] != '}' {
				out = append(out, ',')
			}
		}
	}
	return out
}
