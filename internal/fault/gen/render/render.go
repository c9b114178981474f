// Package render turns the error table into the files that are generated from it. It is pure, so that a test can
// hold the committed files against the table.
//
// Invariant: TestGeneratedFilesAreCurrent in internal/fault.
package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strings"
)

// Table is table.json.
type Table struct {
	Version int     `json:"version"`
	Groups  []Group `json:"groups"`
	Faults  []Fault `json:"faults"`
}

// Group is a common base of several errors.
type Group struct {
	Name   string `json:"name"`
	Parent string `json:"parent"`
	Doc    string `json:"doc"`
}

// Fault is one row.
type Fault struct {
	Code      int    `json:"code"`
	Name      string `json:"name"`
	Group     string `json:"group"`
	Retryable bool   `json:"retryable"`
	Doc       string `json:"doc"`
}

// Parse reads and checks the table.
func Parse(raw []byte) (*Table, error) {
	var t Table
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return nil, err
	}
	groups, codes, names := map[string]bool{}, map[int]bool{}, map[string]bool{}
	for _, g := range t.Groups {
		groups[g.Name] = true
	}
	camel := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	for _, f := range t.Faults {
		switch {
		case !camel.MatchString(f.Name):
			return nil, fmt.Errorf("name %q is not CamelCase", f.Name)
		case f.Code < 1 || f.Code > 65535 || codes[f.Code]:
			return nil, fmt.Errorf("%s: code %d is doubled or not in 1..65535", f.Name, f.Code)
		case names[f.Name] || groups[f.Name]:
			return nil, fmt.Errorf("name %q is doubled", f.Name)
		case !groups[f.Group]:
			return nil, fmt.Errorf("%s: no group %q", f.Name, f.Group)
		case f.Doc == "":
			return nil, fmt.Errorf("%s: no doc", f.Name)
		}
		codes[f.Code], names[f.Name] = true, true
	}
	sort.Slice(t.Faults, func(i, j int) bool { return t.Faults[i].Code < t.Faults[j].Code })
	return &t, nil
}

// All returns every generated file by its path from the repository's root, made from table.json and advice.json.
func All(raw, rawAdvice []byte) (map[string][]byte, error) {
	t, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	advice, err := ParseAdvice(rawAdvice, t)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"internal/fault/codes_gen.go":      goCodes(t),
		"sdk/python/src/kvxfer/_faults.py": pyFaults(t),
		"sdk/go/errors_gen.go":             goErrors(t),
		"docs/errors.md":                   docErrors(t),
	}
	for i := range t.Faults {
		files[page(t.Faults[i].Name)] = docPage(&t.Faults[i], advice[t.Faults[i].Name])
	}
	return files, nil
}

func goCodes(t *Table) []byte {
	var b bytes.Buffer
	p := func(f string, a ...any) { fmt.Fprintf(&b, f, a...) }
	p("// Code generated from table.json by internal/fault/gen; DO NOT EDIT.\n\npackage fault\n\nimport \"strconv\"\n\n")
	p("// The codes of the error table.\nconst (\n")
	for _, f := range t.Faults {
		p("\t// %s: %s\n\t%s Code = %d\n", f.Name, f.Doc, f.Name, f.Code)
	}
	p(")\n\n// The sentinels, one a code, for errors.Is.\nvar (\n")
	for _, f := range t.Faults {
		p("\tErr%s error = sentinel(%s)\n", f.Name, f.Name)
	}
	p(")\n\n// String returns the code's name in the table.\nfunc (c Code) String() string {\n\tswitch c {\n")
	for _, f := range t.Faults {
		p("\tcase %s:\n\t\treturn %q\n", f.Name, f.Name)
	}
	p("\t}\n\treturn \"Code(\" + strconv.Itoa(int(c)) + \")\"\n}\n\n")
	p("// Known reports whether this version's table has the code.\nfunc (c Code) Known() bool {\n\tswitch c {\n\tcase ")
	for i, f := range t.Faults {
		if i > 0 {
			p(",\n\t\t")
		}
		p("%s", f.Name)
	}
	p(":\n\t\treturn true\n\t}\n\treturn false\n}\n\n")
	p("// Retryable is the table's answer to: may the same request be made again?\nfunc (c Code) Retryable() bool {\n\tswitch c {\n\tcase ")
	first := true
	for _, f := range t.Faults {
		if !f.Retryable {
			continue
		}
		if !first {
			p(",\n\t\t")
		}
		first = false
		p("%s", f.Name)
	}
	p(":\n\t\treturn true\n\t}\n\treturn false\n}\n")
	return b.Bytes()
}

func pyFaults(t *Table) []byte {
	var b bytes.Buffer
	p := func(f string, a ...any) { fmt.Fprintf(&b, f, a...) }
	p("# Generated from internal/fault/table.json by internal/fault/gen; do not edit.\n")
	p("\"\"\"The exceptions of kvxfer, one class per row of the error table.\n\nThe tree::\n\n    KvxferError\n")
	for _, g := range t.Groups {
		p("    +-- %s\n", g.Name)
		for _, f := range t.Faults {
			if f.Group == g.Name {
				p("    |   +-- %s\n", f.Name)
			}
		}
	}
	p("\"\"\"\n\nfrom __future__ import annotations\n\nfrom typing import Any\n\n")
	p(`
class KvxferError(Exception):
    """Base of every error that kvxfer raises.

    Attributes:
        code: the number of the error in the table and on the wire.
        op: what was being done.
        peer: the node on the other side, or "".
        region: the region or cache concerned, or "".
        field: the field that was wrong, or "".
        detail: one sentence; names the allowed range where a field was wrong.
        may_have_written: bytes of the target's blocks may have been changed before the failure.
        retryable: the same request may be made again (under a new lease where it wrote).
        released: True when the memory of the caller's side is reusable now; False while it is HELD and a later
            fence must be awaited; None where no memory was involved.
        guarantee: "live-client-only" where memory is concerned whose promise ends with its client's process; "full"
            otherwise.
    """

    code: int = 0
    _retryable: bool = False

    def __init__(
        self,
        detail: str = "",
        *,
        op: str = "",
        peer: str = "",
        region: str = "",
        field: str = "",
        may_have_written: bool = False,
        retryable: bool | None = None,
        released: bool | None = None,
        guarantee: str = "full",
    ) -> None:
        self.op = op
        self.peer = peer
        self.region = region
        self.field = field
        self.detail = detail
        self.may_have_written = may_have_written
        self.retryable = self._retryable if retryable is None else retryable
        self.released = released
        self.guarantee = guarantee
        super().__init__(self._text())

    def _text(self) -> str:
        head = f"{self.op}: " if self.op else ""
        named = (("peer", self.peer), ("region", self.region), ("field", self.field))
        marks = "".join(f" {k}={v!r}" for k, v in named if v)
        tail = f": {self.detail}" if self.detail else ""
        wrote = " (target bytes may have been written)" if self.may_have_written else ""
        weak = f" (guarantee: {self.guarantee})" if self.guarantee != "full" else ""
        return f"{head}{type(self).__name__}{marks}{tail}{wrote}{weak}"
`)
	for _, g := range t.Groups {
		p("\n\nclass %s(KvxferError):\n    \"\"\"%s\"\"\"\n", g.Name, g.Doc)
	}
	for _, f := range t.Faults {
		p("\n\nclass %s(%s):\n    \"\"\"%s\"\"\"\n\n    code = %d\n    _retryable = %s\n", f.Name, f.Group, f.Doc, f.Code, pyBool(f.Retryable))
	}
	p("\n\nBY_CODE: dict[int, type[KvxferError]] = {\n")
	for _, f := range t.Faults {
		p("    %d: %s,\n", f.Code, f.Name)
	}
	p("}\n\n")
	p(`
def from_wire(w: dict[str, Any], *, released: bool | None = None) -> KvxferError:
    """The exception for an error object of the wire; an unknown code becomes Internal and keeps its name."""
    cls = BY_CODE.get(int(w.get("code", 0)))
    detail = str(w.get("detail", ""))
    if cls is None:
        cls, detail = Internal, f"{w.get('name', '')}: {detail}".rstrip(": ")
    return cls(
        detail,
        op=str(w.get("op", "")),
        peer=str(w.get("peer", "")),
        region=str(w.get("region", "")),
        field=str(w.get("field", "")),
        may_have_written=bool(w.get("may_have_written", False)),
        retryable=bool(w.get("retryable", False)),
        released=released,
        guarantee=str(w.get("guarantee", "full")),
    )


__all__ = [
    "BY_CODE",
    "KvxferError",
`)
	for _, g := range t.Groups {
		p("    %q,\n", g.Name)
	}
	for _, f := range t.Faults {
		p("    %q,\n", f.Name)
	}
	p("    \"from_wire\",\n]\n")
	return b.Bytes()
}

// groupSentinel is the Go name of a group: ErrTransfer for TransferError.
func groupSentinel(group string) string { return "Err" + strings.TrimSuffix(group, "Error") }

func goErrors(t *Table) []byte {
	var b bytes.Buffer
	p := func(f string, a ...any) { fmt.Fprintf(&b, f, a...) }
	p("// Code generated from internal/fault/table.json by internal/fault/gen; DO NOT EDIT.\n\npackage kvxfer\n\n")
	p("import \"github.com/kvxfer/kvxfer/internal/fault\"\n\n")
	p("// The groups of errors, for errors.Is. An [*Error] matches its group's sentinel and its own. The tree:\n//\n//\t*Error\n")
	for _, g := range t.Groups {
		p("//\t+-- %s\n", groupSentinel(g.Name))
		for _, f := range t.Faults {
			if f.Group == g.Name {
				p("//\t|   +-- Err%s\n", f.Name)
			}
		}
	}
	p("var (\n")
	for _, g := range t.Groups {
		p("\t// %s: %s\n\t%s error = group(%q)\n", groupSentinel(g.Name), g.Doc, groupSentinel(g.Name), g.Name)
	}
	p(")\n\n// The errors, one a row of the error table, for errors.Is.\nvar (\n")
	for _, f := range t.Faults {
		p("\t// Err%s: %s\n\tErr%s = fault.Err%s\n", f.Name, f.Doc, f.Name, f.Name)
	}
	p(")\n\n// rows finds a row by the name that Error.Code has.\nvar rows = map[string]row{\n")
	for _, f := range t.Faults {
		p("\t%q: {Err%s, %s},\n", f.Name, f.Name, groupSentinel(f.Group))
	}
	p("}\n")
	return b.Bytes()
}

func pyBool(v bool) string {
	if v {
		return "True"
	}
	return "False"
}

func docErrors(t *Table) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Errors\n\nGenerated from `internal/fault/table.json`. The same names are Go sentinels (`Err` + name), Python exceptions and wire codes. Each has a page: what it means and what to do.\n")
	for _, g := range t.Groups {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| code | name | retry safe | meaning |\n|---|---|---|---|\n", g.Name, g.Doc)
		for _, f := range t.Faults {
			if f.Group == g.Name {
				yes := "no"
				if f.Retryable {
					yes = "yes"
				}
				fmt.Fprintf(&b, "| %d | [`%s`](errors/%[2]s.md) | %s | %s |\n", f.Code, f.Name, yes, f.Doc)
			}
		}
	}
	return b.Bytes()
}
