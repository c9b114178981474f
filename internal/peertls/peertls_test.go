package peertls

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; nothing depends on how much of it is used.
const patience = 60 * time.Second

var silent = slog.New(slog.DiscardHandler)

func write(t testing.TB, dir string, a *certtest.Authority, l certtest.Leaf, trusts ...*certtest.Authority) Files {
	cert, key, ca, err := a.Write(dir, l, trusts...)
	require.NoError(t, err)
	return Files{Cert: cert, Key: key, CA: ca}
}

func identity(t testing.TB, node string, a *certtest.Authority, l certtest.Leaf, trusts ...*certtest.Authority) *Identity {
	if l.DNS == nil && l.URIs == nil {
		l.DNS = []string{node}
	}
	i, err := Load(write(t, t.TempDir(), a, l, trusts...), node, silent)
	require.NoError(t, err)
	return i
}

// meet lets two identities shake hands over TCP and say a byte each; the dialer means to reach node. Errors are those of either
// side, up to its first read.
func meet(t testing.TB, dialer, acceptor *Identity, node string) (dialed, accepted error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	talk := func(c *tls.Conn, err error) error {
		if err != nil {
			return err
		}
		if _, err = c.Write([]byte{1}); err == nil {
			_, err = io.ReadFull(c, make([]byte, 1))
		}
		return Explain(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		raw, err := ln.Accept()
		if err != nil {
			accepted = err
			return
		}
		defer raw.Close()
		accepted = talk(acceptor.Server(ctx, raw))
		_ = raw.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, raw) // closing on unread bytes would reset the alert away
	})
	raw, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	dialed = talk(dialer.Client(ctx, raw, node))
	_ = raw.Close()
	wg.Wait()
	return dialed, accepted
}

func TestWhoIsBelieved(t *testing.T) {
	ours, theirs := certtest.New("ours"), certtest.New("theirs")
	now := time.Now()
	for _, tt := range []struct {
		name             string
		dialer, acceptor *Identity
		dialed, accepted fault.Code // 0: no error; the side that refuses says PermissionDenied, the other hears of it
	}{
		{"both of one authority", identity(t, "a", ours, certtest.Leaf{}), identity(t, "b", ours, certtest.Leaf{}), 0, 0},
		{"named by URI", identity(t, "a", ours, certtest.Leaf{URIs: []string{"kvxfer:node/a"}}), identity(t, "b", ours, certtest.Leaf{URIs: []string{"kvxfer:node/b"}}), 0, 0},
		{"dialer of another authority", identity(t, "a", theirs, certtest.Leaf{}, theirs, ours), identity(t, "b", ours, certtest.Leaf{}), fault.PermissionDenied, fault.PermissionDenied},
		{"acceptor of another authority", identity(t, "a", ours, certtest.Leaf{}), identity(t, "b", theirs, certtest.Leaf{}, theirs, ours), fault.PermissionDenied, fault.PermissionDenied},
		{"another node answers", identity(t, "a", ours, certtest.Leaf{}), identity(t, "c", ours, certtest.Leaf{}), fault.PermissionDenied, fault.PermissionDenied},
		{"a wildcard names nobody", identity(t, "a", ours, certtest.Leaf{}), identity(t, "*.b", ours, certtest.Leaf{DNS: []string{"*.b", "*"}}), fault.PermissionDenied, fault.PermissionDenied},
		{"expired dialer", identity(t, "a", ours, certtest.Leaf{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}), identity(t, "b", ours, certtest.Leaf{}), fault.PermissionDenied, fault.PermissionDenied},
		{"expired acceptor", identity(t, "a", ours, certtest.Leaf{}), identity(t, "b", ours, certtest.Leaf{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}), fault.PermissionDenied, fault.PermissionDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// The test's authority "theirs" signs identities that trust both, so that it is the other side that refuses.
			dialed, accepted := meet(t, tt.dialer, tt.acceptor, "b")
			assert.Equal(t, tt.dialed.String(), fault.CodeOf(dialed).String(), "%v", dialed)
			assert.Equal(t, tt.accepted.String(), fault.CodeOf(accepted).String(), "%v", accepted)
		})
	}
}

// A client without a certificate, of an older TLS or of another protocol is nobody.
func TestWhoIsNobody(t *testing.T) {
	ours := certtest.New("ours")
	acceptor := identity(t, "b", ours, certtest.Leaf{})
	other := identity(t, "a", ours, certtest.Leaf{})
	for name, config := range map[string]*tls.Config{
		"no certificate": {InsecureSkipVerify: true, NextProtos: []string{protocol}},
		"TLS 1.2":        {InsecureSkipVerify: true, NextProtos: []string{protocol}, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{other.current().cert}},
		"no protocol":    {InsecureSkipVerify: true, Certificates: []tls.Certificate{other.current().cert}},
		"other protocol": {InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{other.current().cert}},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			done := make(chan error, 1)
			go func() {
				defer there.Close()
				_, err := acceptor.Server(t.Context(), there)
				done <- err
			}()
			c := tls.Client(here, config)
			if c.HandshakeContext(t.Context()) == nil {
				_, _ = c.Read(make([]byte, 1))
			}
			require.Error(t, <-done)
		})
	}
}

func TestCheckNode(t *testing.T) {
	ours := certtest.New("ours")
	a, b := identity(t, "a", ours, certtest.Leaf{DNS: []string{"x", "a"}}), identity(t, "b", ours, certtest.Leaf{})
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	go func() { _, _ = a.Client(t.Context(), here, "b") }()
	c, err := b.Server(t.Context(), there)
	require.NoError(t, err)
	assert.NoError(t, CheckNode(c, "a"))
	assert.NoError(t, CheckNode(c, "x"))
	assert.ErrorIs(t, CheckNode(c, "A"), fault.ErrPermissionDenied)
	assert.ErrorIs(t, CheckNode(c, "b"), fault.ErrPermissionDenied)
}

func TestWrongFiles(t *testing.T) {
	ours, theirs := certtest.New("ours"), certtest.New("theirs")
	good := certtest.Leaf{DNS: []string{"n"}}
	for name, tt := range map[string]struct {
		spoil func(f *Files)
		leaf  certtest.Leaf
		by    *certtest.Authority
		field string
		says  string
	}{
		"no certificate file": {field: fieldCert, says: "cannot be read", spoil: func(f *Files) { _ = os.Remove(f.Cert) }},
		"no key file":         {field: fieldKey, says: "cannot be read", spoil: func(f *Files) { _ = os.Remove(f.Key) }},
		"no authority file":   {field: fieldCA, says: "cannot be read", spoil: func(f *Files) { _ = os.Remove(f.CA) }},
		"a directory":         {field: fieldCA, says: "not a regular file", spoil: func(f *Files) { f.CA = filepath.Dir(f.CA) }},
		"empty certificate":   {field: fieldCert, says: "no certificate", spoil: func(f *Files) { _ = os.WriteFile(f.Cert, nil, 0o600) }},
		"key as certificate":  {field: fieldCert, says: "no certificate", spoil: func(f *Files) { f.Cert = f.Key }},
		"certificate as key":  {field: fieldKey, says: "PEM private key", spoil: func(f *Files) { f.Key = f.Cert }},
		"empty authority":     {field: fieldCA, says: "no certificate", spoil: func(f *Files) { _ = os.WriteFile(f.CA, []byte("x"), 0o600) }},
		"too large":           {field: fieldCA, says: "larger", spoil: func(f *Files) { _ = os.WriteFile(f.CA, make([]byte, maxFile+1), 0o600) }},
		"another's key": {field: fieldKey, says: "private key", spoil: func(f *Files) {
			_, key := ours.Issue(good)
			_ = os.WriteFile(f.Key, key, 0o600)
		}},
		"another node's":        {field: fieldCert, says: `names ["m"]`, leaf: certtest.Leaf{DNS: []string{"m"}}},
		"of another authority":  {field: fieldCert, says: "has signed", by: theirs},
		"for servers alone":     {field: fieldCert, says: "client authentication", leaf: certtest.Leaf{DNS: []string{"n"}, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}},
		"for other things only": {field: fieldCert, says: "client authentication", leaf: certtest.Leaf{DNS: []string{"n"}, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}}},
	} {
		t.Run(name, func(t *testing.T) {
			leaf, by := tt.leaf, tt.by
			if leaf.DNS == nil {
				leaf = good
			}
			if by == nil {
				by = ours
			}
			f := write(t, t.TempDir(), by, leaf, ours)
			secret, err := os.ReadFile(f.Key)
			require.NoError(t, err)
			if tt.spoil != nil {
				tt.spoil(&f)
			}
			_, err = Load(f, "n", silent)
			var fe *fault.Error
			require.ErrorAs(t, err, &fe)
			assert.Equal(t, fault.ConfigInvalid, fe.Code)
			assert.Equal(t, tt.field, fe.Field)
			assert.ErrorContains(t, err, tt.says)
			for _, line := range strings.Split(string(secret), "\n")[1:3] {
				assert.NotContains(t, err.Error(), line, "the key is repeated")
			}
		})
	}
}

// logged is a logger whose lines can be counted.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

func TestExpiredAtTheStartIsAWarning(t *testing.T) {
	ours := certtest.New("ours")
	var log logged
	now := time.Now()
	for _, leaf := range []certtest.Leaf{{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}, {NotBefore: now.Add(time.Hour), NotAfter: now.Add(2 * time.Hour)}} {
		leaf.DNS = []string{"n"}
		before := log.count("outside its time")
		_, err := Load(write(t, t.TempDir(), ours, leaf), "n", slog.New(slog.NewTextHandler(&log, nil)))
		require.NoError(t, err)
		assert.Equal(t, before+1, log.count("outside its time"))
	}
}

func TestBrokenSetIsNotTaken(t *testing.T) {
	ours, theirs := certtest.New("ours"), certtest.New("theirs")
	var log logged
	dir := t.TempDir()
	good := certtest.Leaf{DNS: []string{"n"}}
	f := write(t, dir, ours, good)
	i, err := Load(f, "n", slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	i.every = 0
	first := i.current()
	now := time.Now()
	said := 0
	for name, spoil := range map[string]func(){
		"half of a new set": func() { // the certificate without its key
			cert, _ := ours.Issue(good)
			require.NoError(t, os.WriteFile(f.Cert, cert, 0o600))
		},
		"a file is missing": func() { require.NoError(t, os.Remove(f.Key)) },
		"garbage":           func() { require.NoError(t, os.WriteFile(f.CA, []byte("-----BEGIN"), 0o600)) },
		"another authority": func() { write(t, dir, theirs, good, ours) },
		"another node":      func() { write(t, dir, ours, certtest.Leaf{DNS: []string{"m"}}) },
		"expired": func() {
			write(t, dir, ours, certtest.Leaf{DNS: good.DNS, NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)})
		},
	} {
		spoil()
		for range 3 {
			assert.Same(t, first, i.current(), name)
		}
		said++
		assert.Equal(t, said, log.count("not used"), name)
		write(t, dir, ours, good)
		whole := i.current()
		assert.NotSame(t, first, whole, name)
		first = whole
	}
}

// A set that is only too early is taken when its time has come, though the files do not change any more.
func TestEarlySetIsTakenLater(t *testing.T) {
	ours := certtest.New("ours")
	dir := t.TempDir()
	i, err := Load(write(t, dir, ours, certtest.Leaf{DNS: []string{"n"}}), "n", silent)
	require.NoError(t, err)
	i.every = 0
	first := i.current()
	write(t, dir, ours, certtest.Leaf{DNS: []string{"n"}, NotBefore: time.Now().Add(time.Hour)})
	assert.Same(t, first, i.current())
	i.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	assert.NotSame(t, first, i.current())
}

func TestRotation(t *testing.T) {
	old, fresh := certtest.New("old"), certtest.New("fresh")
	a, b := identity(t, "a", old, certtest.Leaf{}), identity(t, "b", old, certtest.Leaf{})
	a.every, b.every = 0, 0
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	type side struct {
		c   *tls.Conn
		err error
	}
	accepted := make(chan side, 1)
	go func() {
		c, err := b.Server(t.Context(), there)
		accepted <- side{c, err}
	}()
	open, err := a.Client(t.Context(), here, "b")
	require.NoError(t, err)
	far := <-accepted
	require.NoError(t, far.err)

	require.NotEmpty(t, write(t, filepath.Dir(a.files.Cert), fresh, certtest.Leaf{DNS: []string{"a"}}))
	dialed, _ := meet(t, a, b, "b")
	require.ErrorIs(t, dialed, fault.ErrPermissionDenied, "one side alone was renewed, without a time in which both are trusted")
	write(t, filepath.Dir(b.files.Cert), fresh, certtest.Leaf{DNS: []string{"b"}})
	dialed, acceptedErr := meet(t, a, b, "b")
	require.NoError(t, dialed)
	require.NoError(t, acceptedErr)

	go func() { _, _ = far.c.Write([]byte("still here")) }()
	b10 := make([]byte, 10)
	_, err = io.ReadFull(open, b10)
	require.NoError(t, err)
	assert.Equal(t, "still here", string(b10))
}

// Within the time between two looks the files are not asked.
func TestFilesAreLookedAtSeldom(t *testing.T) {
	ours := certtest.New("ours")
	dir := t.TempDir()
	i, err := Load(write(t, dir, ours, certtest.Leaf{DNS: []string{"n"}}), "n", silent)
	require.NoError(t, err)
	now := time.Now()
	i.now, i.looked = func() time.Time { return now }, now
	first := i.current()
	write(t, dir, ours, certtest.Leaf{DNS: []string{"n"}})
	now = now.Add(lookEvery - 1)
	assert.Same(t, first, i.current())
	now = now.Add(1)
	assert.NotSame(t, first, i.current())
}

func TestExplain(t *testing.T) {
	here, there := net.Pipe()
	i := identity(t, "a", certtest.New("ours"), certtest.Leaf{})
	go func() {
		_, _ = io.ReadFull(there, make([]byte, 4))
		go func() { _, _ = io.Copy(io.Discard, there) }()
		_, _ = there.Write([]byte("KVXF\x01\x03\x00\x00"))
	}()
	_, err := i.Client(t.Context(), here, "b")
	assert.ErrorIs(t, err, fault.ErrPermissionDenied)
	assert.ErrorContains(t, err, "speaks without")
	assert.ErrorIs(t, Explain(io.EOF), io.EOF)
	assert.NoError(t, Explain(nil))
	_, err = i.LaneClient(t.Context(), here)
	assert.ErrorIs(t, err, fault.ErrInternal)
	_, _ = here.Close(), there.Close()
}

func FuzzFiles(f *testing.F) {
	a := certtest.New("fuzz")
	cert, key := a.Issue(certtest.Leaf{DNS: []string{"n"}})
	f.Add(cert, key, a.PEM())
	f.Add(key, cert, []byte("-----BEGIN CERTIFICATE-----\n"))
	f.Add([]byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, cert, key, ca []byte) {
		dir := t.TempDir()
		files := Files{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), CA: filepath.Join(dir, "a")}
		for path, raw := range map[string][]byte{files.Cert: cert, files.Key: key, files.CA: ca} {
			require.NoError(t, os.WriteFile(path, raw, 0o600))
		}
		i, err := Load(files, "n", silent)
		if (i == nil) == (err == nil) {
			t.Fatal("neither an identity nor an error, or both")
		}
		if err != nil && fault.CodeOf(err) != fault.ConfigInvalid {
			t.Fatal(err)
		}
	})
}
