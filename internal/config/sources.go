package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

// configKey is the one setting that the file cannot hold, as it names the file.
const configKey = "config"

// envName is the variable of a setting.
func envName(name string) string {
	return "KVXFER_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// fromFlags reads --name value, --name=value and both with one dash; a switch's value may be left out. It is not done by a flag.FlagSet because that
// stops at the first error. The only error it returns is flag.ErrHelp.
func (l *loader) fromFlags(args []string) (values, error) {
	out := values{}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		name, text, given := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		switch {
		case arg == "" || arg[0] != '-' || strings.Trim(arg, "-") == "":
			l.fail("arguments", "%.120q is not a flag; allowed: flags only, --help lists them", arg)
		case name == "help" || name == "h":
			return nil, flag.ErrHelp
		case name != configKey && byName(name) == nil:
			l.fail(name, "--%s is not a flag; allowed: %s", name, strings.Join(names(), ", "))
			if !given && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:] // most likely its value
			}
		case !given && byName(name) != nil && byName(name).kind == boolKind && (len(args) == 0 || args[0] != "true" && args[0] != "false"):
			out[name] = value{"true", "flag --" + name}
		case !given && len(args) == 0:
			l.fail(name, "flag --%s lacks its value; allowed: %s", name, allowedFor(name))
		default:
			if !given {
				text, args = args[0], args[1:]
			}
			out[name] = value{text, "flag --" + name}
		}
	}
	return out, nil
}

func (l *loader) fromEnv() values {
	out := values{}
	for _, name := range append(names(), configKey) {
		if text := l.env[envName(name)]; text != "" {
			out[name] = value{text, envName(name)}
		}
	}
	return out
}

// fromFile reads the file at path, if one is named. It reports whether what the file says is known.
func (l *loader) fromFile(path value, named bool) (values, bool) {
	if !named || path.text == "" {
		return nil, true
	}
	raw, err := l.host.readFile(path.text, maxFile)
	if err != nil {
		l.fail(configKey, "%.120q from %s cannot be read: %s; allowed: %s", path.text, path.source, err, allowedFor(configKey))
		return nil, false
	}
	out, errs := parseFile(path.text, raw)
	for _, e := range errs {
		l.fail(e.field, "%s", e.detail)
	}
	for _, e := range errs {
		if e.field == configKey {
			return out, false
		}
	}
	return out, true
}

// fileError is what is wrong with a file; field is configKey where it is the file as a whole.
type fileError struct{ field, detail string }

// parseFile reads a JSON object of settings. It goes on behind a wrong key or value, so that all of them are reported.
func parseFile(path string, raw []byte) (values, []fileError) {
	out, seen := values{}, map[string]bool{}
	var errs []fileError
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	source := func() string {
		return fmt.Sprintf("%s line %d", path, 1+bytes.Count(raw[:d.InputOffset()], []byte("\n")))
	}
	whole := func(err error) []fileError {
		return append(errs, fileError{configKey, fmt.Sprintf("%s: %s; allowed: one JSON object of settings", source(), err)})
	}
	if t, err := d.Token(); err != nil {
		return nil, whole(noEOF(err))
	} else if t != json.Delim('{') {
		return nil, whole(errors.New("not a JSON object"))
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, whole(noEOF(err))
		}
		name, _ := t.(string) // a key is always a string
		at := source()
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, whole(noEOF(err))
		}
		s := byName(name)
		if s == nil {
			errs = append(errs, fileError{name, fmt.Sprintf("%.80q in %s is not a key; allowed: %s", name, at, strings.Join(names(), ", "))})
			continue
		}
		if seen[name] {
			errs = append(errs, fileError{name, fmt.Sprintf("%q is a second time in %s; allowed: once", name, at)})
			continue
		}
		seen[name] = true
		text, err := s.kind.fromJSON(v)
		if err != nil {
			errs = append(errs, fileError{name, fmt.Sprintf("the value in %s is not allowed: %s; allowed: %s", at, err, s.allowed)})
			continue
		}
		out[name] = value{text, at}
	}
	if _, err := d.Token(); err != nil {
		return nil, whole(noEOF(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, whole(errors.New("more follows behind the object"))
	}
	return out, errs
}

// noEOF says in words what an io.EOF means here.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return err
}

// kind is how a setting is written in the file.
type kind int

const (
	textKind   kind = iota // a string
	numberKind             // a number
	listKind               // an array of strings or numbers, or one string with commas
	boolKind               // true or false, or one of them as a string
)

func (k kind) fromJSON(raw json.RawMessage) (string, error) {
	var s string
	if k != numberKind && raw[0] == '"' {
		return s, json.Unmarshal(raw, &s)
	}
	switch k {
	case boolKind:
		if text := string(raw); text == "true" || text == "false" {
			return text, nil
		}
		return "", errors.New("it must be true or false")
	case textKind:
		return "", errors.New("it must be a string")
	case numberKind:
		if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
			return "", errors.New("it must be a number")
		}
		return string(raw), nil
	}
	var items []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &items) != nil {
		return "", errors.New("it must be an array or a string")
	}
	texts := make([]string, len(items))
	for i, item := range items {
		element := textKind
		if item[0] != '"' {
			element = numberKind
		}
		text, err := element.fromJSON(item)
		if err != nil || strings.Contains(text, ",") {
			return "", errors.New("its elements must be strings without commas, or numbers")
		}
		texts[i] = text
	}
	return strings.Join(texts, ","), nil
}

// readFile reads a file of at most limit bytes. A named pipe or a device would never end, or answer differently twice.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(raw)) > limit {
		err = fmt.Errorf("larger than %d bytes", limit)
	}
	return raw, err
}
