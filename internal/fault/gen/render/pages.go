package render

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Advice is what a page says of an error beyond the table: advice.json by the error's name.
type Advice struct {
	Written string   `json:"written"` // may the target's bytes have changed?
	Causes  []string `json:"causes"`
	Do      []string `json:"do"`
}

// ParseAdvice reads advice.json and holds it against the table: every error has causes and something to do.
func ParseAdvice(raw []byte, t *Table) (map[string]Advice, error) {
	var all map[string]Advice
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&all); err != nil {
		return nil, err
	}
	for _, f := range t.Faults {
		if a := all[f.Name]; a.Written == "" || len(a.Causes) == 0 || len(a.Do) == 0 {
			return nil, fmt.Errorf("advice.json: %s lacks written, causes or do", f.Name)
		}
	}
	if len(all) != len(t.Faults) {
		return nil, fmt.Errorf("advice.json: %d errors, the table has %d", len(all), len(t.Faults))
	}
	return all, nil
}

// page is where an error's page lies.
func page(name string) string { return "docs/errors/" + name + ".md" }

func docPage(f *Fault, a Advice) []byte {
	var b bytes.Buffer
	retry := "No: the same request fails again, unless the error itself says otherwise (`retryable`)."
	if f.Retryable {
		retry = "Yes, unless the error itself says otherwise (`retryable`): with a new lease where one was used."
	}
	fmt.Fprintf(&b, "# %s\n\n%s\n\n", f.Name, f.Doc)
	fmt.Fprintf(&b, "Code %d. Go: `kvxfer.Err%[2]s`; Python: `kvxfer.%[2]s`, a `kvxfer.%s`. All errors: [the table](../errors.md).\n\n", f.Code, f.Name, f.Group)
	fmt.Fprintf(&b, "**May bytes have been written?** %s\n\n**Is a retry safe?** %s\n\n## Usual causes\n\n", a.Written, retry)
	for _, s := range a.Causes {
		fmt.Fprintf(&b, "- %s\n", s)
	}
	fmt.Fprint(&b, "\n## What to do\n\n")
	for _, s := range a.Do {
		fmt.Fprintf(&b, "- %s\n", s)
	}
	return b.Bytes()
}
