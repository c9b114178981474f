package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// value is what a source says of a setting.
type value struct {
	items  []string // one, but for lists
	source string
}

// text is the value as one string; lists are joined as they would be written.
func (v value) text() string { return strings.Join(v.items, ",") }

// pick takes the value of the first source that has one.
func (s *setting) pick(h Host, from ...map[string]value) (value, error) {
	for _, m := range from {
		if v, ok := m[s.name]; ok {
			if !s.list && len(v.items) != 1 {
				return v, invalid(s.name, "set by %s: %d values, allowed 1", v.source, len(v.items))
			}
			return v, nil
		}
	}
	v := value{source: "default"}
	text, err := s.def(h)
	if err != nil {
		return v, invalid(s.name, "has no default here, set it: %v", err)
	}
	v.items = []string{text}
	return v, nil
}

// parseArgs reads --name value and --name=value (one dash does too). A flag that comes again adds to a list and replaces
// another value.
func parseArgs(args []string) (map[string]value, []error, bool) {
	out := map[string]value{}
	var errs []error
	for i := 0; i < len(args); i++ {
		arg := args[i]
		name, ok := strings.CutPrefix(arg, "-")
		if !ok || name == "" || name == "-" {
			errs = append(errs, invalid("", "argument %q: allowed are flags only, see --help", clip(arg)))
			continue
		}
		name = strings.TrimPrefix(name, "-")
		name, text, hasText := strings.Cut(name, "=")
		if name == "h" || name == "help" {
			return nil, nil, true
		}
		s := find(name)
		if s == nil && name != configName {
			errs = append(errs, invalid(clip(name), "set by --%s: there is no such flag, see --help", clip(name)))
			continue
		}
		if !hasText {
			if i+1 == len(args) {
				errs = append(errs, invalid(name, "set by --%s: the value is missing", name))
				break
			}
			i++
			text = args[i]
		}
		v := value{source: "--" + name, items: []string{text}}
		if s != nil && s.list {
			v.items = append(out[name].items, text)
		}
		out[name] = v
	}
	return out, errs, false
}

// EnvName is the variable of a setting.
func EnvName(setting string) string {
	return "KVXFER_" + strings.ToUpper(strings.ReplaceAll(setting, "-", "_"))
}

func readEnv(h Host) map[string]value {
	out := map[string]value{}
	for _, name := range Names() {
		if text, ok := h.LookupEnv(EnvName(name)); ok && text != "" {
			out[name] = value{source: EnvName(name), items: []string{text}}
		}
	}
	return out
}

// configName is the setting that names the file; it is not in the table, as the file cannot set it.
const configName = "config"

// maxFile bounds the configuration file, in bytes.
const maxFile = 1 << 20

func loadFile(h Host, flags, env map[string]value) (map[string]value, error) {
	v, ok := flags[configName]
	if !ok {
		v, ok = env[configName]
	}
	if !ok {
		return nil, nil
	}
	raw, err := h.ReadFile(v.text())
	if err != nil {
		return nil, invalid(configName, "set by %s: %v", v.source, err)
	}
	return parseFile(v.text(), raw)
}

// readFile reads at most a little more than maxFile, so that a wrong path (a device) ends.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// parseFile reads the JSON object; the values of good keys come back beside the errors of others.
func parseFile(path string, raw []byte) (map[string]value, error) {
	if len(raw) > maxFile {
		return nil, invalid(configName, "%s: allowed 0..%d bytes", path, maxFile)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	where := func() string { return fmt.Sprintf("%s:%d", path, 1+bytes.Count(raw[:d.InputOffset()], []byte("\n"))) }
	broken := func(err error) error {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return invalid(configName, "%s: not a JSON object: %v", where(), err)
	}
	t, err := d.Token()
	if err != nil {
		return nil, broken(err)
	}
	if t != json.Delim('{') {
		return nil, broken(fmt.Errorf("it begins with %v", clip(fmt.Sprint(t))))
	}
	out := map[string]value{}
	var errs []error
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return out, errors.Join(append(errs, broken(err))...)
		}
		name, _ := t.(string) // the decoder lets nothing else be a key
		v := value{source: where()}
		var text any
		if err := d.Decode(&text); err != nil {
			return out, errors.Join(append(errs, broken(err))...)
		}
		_, twice := out[name]
		switch {
		case find(name) == nil:
			err = invalid(clip(name), "set by %s: there is no such setting, allowed: %s", v.source, strings.Join(Names()[1:], ", "))
		case twice:
			err = invalid(name, "set by %s: it is set by %s already", v.source, out[name].source)
		default:
			if v.items, err = items(text); err != nil {
				err = invalid(name, "set by %s: %v", v.source, err)
			} else {
				out[name] = v
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return out, errors.Join(append(errs, broken(err))...)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		errs = append(errs, invalid(configName, "%s: something follows the JSON object", where()))
	}
	return out, errors.Join(errs...)
}

func items(v any) ([]string, error) {
	switch v := v.(type) {
	case string:
		return []string{v}, nil
	case json.Number:
		return []string{v.String()}, nil
	case bool:
		return []string{fmt.Sprint(v)}, nil
	case []any:
		out := []string{}
		for _, x := range v {
			if _, nested := x.([]any); nested {
				return nil, errors.New("a list in a list")
			}
			one, err := items(x)
			if err != nil {
				return nil, err
			}
			out = append(out, one...)
		}
		return out, nil
	}
	return nil, errors.New("allowed are strings, numbers, booleans and lists of them")
}

// clip bounds what an error repeats.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
