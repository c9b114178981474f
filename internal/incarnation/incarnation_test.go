package incarnation

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// childDir makes this test binary a daemon: it acquires the directory, prints its epoch and sleeps.
const childDir = "KVXFER_TEST_INCARNATION_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		in, err := Acquire(context.Background(), dir, "child")
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("epoch", in.Epoch())
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until the test ends or closes it
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

type child struct {
	cmd   *exec.Cmd
	epoch string
}

func start(t *testing.T, dir string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	epoch, ok := strings.CutPrefix(strings.TrimSpace(line), "epoch ")
	require.True(t, ok, line)
	return &child{cmd: cmd, epoch: epoch}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func stateDir(t *testing.T) string { return filepath.Join(t.TempDir(), "state") }

func requireInUse(t *testing.T, err error, pid int) {
	t.Helper()
	require.ErrorIs(t, err, fault.ErrAlreadyExists)
	assert.ErrorContains(t, err, "pid "+strconv.Itoa(pid))
	assert.Equal(t, "state-dir", fault.From("", err).Field)
}

func TestFirst(t *testing.T) {
	dir := stateDir(t)
	in, err := Acquire(context.Background(), dir, "prefill-0")
	require.NoError(t, err)
	assert.Regexp(t, `^[0-9a-f]{32}$`, in.Epoch())
	assert.Empty(t, in.PreviousEpoch())
	assert.Regexp(t, `^[0-9a-f-]{36}$`, in.BootID())
	r, err := readRecord(dir)
	require.NoError(t, err)
	assert.Equal(t, os.Getpid(), r.Pid)
	assert.Equal(t, "prefill-0", r.Node)
	for name, mode := range map[string]os.FileMode{"": 0o700, lockName: 0o600, recordName: 0o600} {
		st, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		assert.Equal(t, mode, st.Mode().Perm(), name)
	}
	require.NoError(t, in.Close())
}

func TestCloseAndAgain(t *testing.T) {
	dir := stateDir(t)
	a, err := Acquire(context.Background(), dir, "n")
	require.NoError(t, err)
	_, err = Acquire(within(t, 20*time.Millisecond), dir, "n")
	requireInUse(t, err, os.Getpid())
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	b, err := Acquire(within(t, time.Minute), dir, "n")
	require.NoError(t, err)
	assert.Equal(t, a.Epoch(), b.PreviousEpoch())
	assert.NotEqual(t, a.Epoch(), b.Epoch())
	require.NoError(t, b.Close())
}

func TestWaitsForALiveProcess(t *testing.T) {
	dir := stateDir(t)
	c := start(t, dir)
	_, err := Acquire(within(t, 20*time.Millisecond), dir, "n")
	requireInUse(t, err, c.cmd.Process.Pid)
	require.NoError(t, c.cmd.Process.Signal(unix.SIGSTOP))
	_, err = Acquire(within(t, 20*time.Millisecond), dir, "n")
	requireInUse(t, err, c.cmd.Process.Pid)
}

func TestDeletedLockIsNotEnough(t *testing.T) {
	dir := stateDir(t)
	c := start(t, dir)
	require.NoError(t, c.cmd.Process.Signal(unix.SIGSTOP))
	require.NoError(t, os.Remove(filepath.Join(dir, lockName)))
	_, err := Acquire(within(t, 20*time.Millisecond), dir, "n")
	requireInUse(t, err, c.cmd.Process.Pid)

	require.NoError(t, c.cmd.Process.Kill())
	in, err := Acquire(within(t, time.Minute), dir, "n")
	require.NoError(t, err)
	assert.Equal(t, c.epoch, in.PreviousEpoch())
	require.NoError(t, in.Close())

	// The same inside one process, which cannot wait for itself.
	a, err := Acquire(context.Background(), dir, "n")
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(dir, lockName)))
	_, err = Acquire(context.Background(), dir, "n")
	requireInUse(t, err, os.Getpid())
	require.NoError(t, a.Close())
}

func TestExitEndsTheWait(t *testing.T) {
	for _, deleteLock := range []bool{false, true} {
		t.Run(fmt.Sprintf("lock deleted %v", deleteLock), func(t *testing.T) {
			dir := stateDir(t)
			c := start(t, dir)
			if deleteLock {
				require.NoError(t, os.Remove(filepath.Join(dir, lockName)))
			}
			type result struct {
				in  *Incarnation
				err error
			}
			got := make(chan result, 1)
			ctx := within(t, time.Minute)
			go func() {
				in, err := Acquire(ctx, dir, "n")
				got <- result{in, err}
			}()
			select {
			case r := <-got:
				require.Fail(t, "acquired beside a live process", "%v", r.err)
			case <-time.After(20 * time.Millisecond):
			}
			require.NoError(t, c.cmd.Process.Signal(unix.SIGKILL))
			r := <-got
			require.NoError(t, r.err)
			assert.Equal(t, c.epoch, r.in.PreviousEpoch())
			require.NoError(t, r.in.Close())
		})
	}
}

func TestReusedNumber(t *testing.T) {
	boot, err := bootID()
	require.NoError(t, err)
	other := exec.Command("sleep", "600")
	require.NoError(t, other.Start())
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	ticks, err := startTicks(other.Process.Pid)
	require.NoError(t, err)
	for name, r := range map[string]record{
		"another start time": {Pid: other.Process.Pid, StartTicks: ticks + 1, BootID: boot},
		"another boot":       {Pid: other.Process.Pid, StartTicks: ticks, BootID: "another"},
		"closed":             {Pid: other.Process.Pid, StartTicks: ticks, BootID: boot, Closed: true},
		"own number":         {Pid: os.Getpid(), StartTicks: 1, BootID: boot},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r.Format, r.Epoch = recordFormat, "0123"
			require.NoError(t, os.Chmod(dir, 0o700))
			require.NoError(t, r.write(dir))
			in, err := Acquire(within(t, time.Minute), dir, "n")
			require.NoError(t, err)
			assert.Equal(t, "0123", in.PreviousEpoch())
			require.NoError(t, in.Close())
		})
	}
}

func TestUnreadableRecord(t *testing.T) {
	for _, raw := range []string{"", "{", "null", `{"format":2,"pid":1,"boot_id":"x"}`, `{"format":1,"pid":0,"boot_id":"x"}`, `{"format":1,"pid":1}`} {
		dir := stateDir(t)
		require.NoError(t, os.Mkdir(dir, 0o700))
		path := filepath.Join(dir, recordName)
		require.NoError(t, os.WriteFile(path, []byte(raw), 0o600))
		_, err := Acquire(context.Background(), dir, "n")
		require.ErrorIs(t, err, fault.ErrStoreFailed, raw)
		assert.ErrorContains(t, err, path)
		require.NoError(t, os.Remove(path))
		in, err := Acquire(within(t, time.Minute), dir, "n")
		require.NoError(t, err, "the refusal kept no lock")
		require.NoError(t, in.Close())
	}
}

func TestStateDirectory(t *testing.T) {
	wide := t.TempDir()
	require.NoError(t, os.Chmod(wide, 0o755))
	in, err := Acquire(context.Background(), wide, "n")
	require.NoError(t, err, "an empty one is closed to others")
	require.NoError(t, in.Close())
	st, err := os.Stat(wide)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), st.Mode().Perm())

	require.NoError(t, os.Chmod(wide, 0o750))
	_, err = Acquire(context.Background(), wide, "n")
	require.ErrorIs(t, err, fault.ErrConfigInvalid)
	assert.ErrorContains(t, err, "0750")
	assert.Equal(t, "state-dir", fault.From("", err).Field)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Acquire(context.Background(), file, "n")
	assert.ErrorIs(t, err, fault.ErrConfigInvalid)

	if os.Getuid() == 0 {
		foreign := t.TempDir()
		require.NoError(t, os.Chown(foreign, 12345, 12345))
		_, err = Acquire(context.Background(), foreign, "n")
		require.ErrorIs(t, err, fault.ErrConfigInvalid)
		assert.ErrorContains(t, err, "12345")
	}
}

func TestStatOfOddNames(t *testing.T) {
	tail := " S" + strings.Repeat(" 7", 18) + " 4711 0"
	for _, name := range []string{"kvxfer", "a b", ") S 1 (", "))"} {
		n, err := parseStat("12 (" + name + ")" + tail)
		require.NoError(t, err)
		assert.Equal(t, uint64(4711), n)
	}
}

func FuzzParse(f *testing.F) {
	raw, _ := json.Marshal(record{Format: 1, Pid: 1, BootID: "b"})
	f.Add(raw)
	f.Add([]byte("1 (x) S 1 2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRecord(b); err == nil && (r.Pid < 1 || r.BootID == "") {
			t.Fatalf("accepted %+v", r)
		}
		_, _ = parseStat(string(b))
	})
}
