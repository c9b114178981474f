package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// Kinds of frames. The host sends the upper-case ones.
const (
	kindHello   = 'H' // nothing; sent first, so that an empty port before it is not taken for a host that hung up
	kindCommand = 'C' // command as JSON
	kindSignal  = 'S' // one byte: the signal for the stream's command and all it started
	kindInput   = 'I' // bytes for the stream's standard input; none closes it
	kindWrite   = 'W' // chunk as JSON, a line feed, bytes
	kindRead    = 'R' // a path
	kindReady   = 'h' // the first frame: the machine is up
	kindStdout  = 'o'
	kindStderr  = 'e'
	kindData    = 'd' // a file's bytes
	kindResult  = 'x' // result as JSON; the last of its stream

	maxFrame = 1 << 20
)

type command struct {
	Argv    []string          `json:"argv"`
	Env     map[string]string `json:"env"`
	Dir     string            `json:"dir"`
	Timeout float64           `json:"timeout"` // seconds; 0 is none
	Stdin   bool              `json:"stdin"`   // the host will send input
}

type chunk struct {
	Path   string `json:"path"`
	Mode   uint32 `json:"mode"`
	Append bool   `json:"append"`
}

type result struct {
	RC       int    `json:"rc"` // exit status, or minus the signal
	TimedOut bool   `json:"timed_out"`
	Error    string `json:"error"` // why there was no exit status
}

type server struct {
	port *os.File
	out  sync.Mutex // frames are written whole

	mu   sync.Mutex
	runs map[uint32]*running
}

func newServer(port *os.File) *server {
	return &server{port: port, runs: map[uint32]*running{}}
}

// serve returns when the host hung up.
func (s *server) serve() error {
	if err := s.send(0, kindReady, nil); err != nil {
		return err
	}
	in := bufio.NewReaderSize(&untilConnected{f: s.port}, 64<<10)
	for {
		var head [9]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		n, id, kind := binary.BigEndian.Uint32(head[0:]), binary.BigEndian.Uint32(head[4:]), head[8]
		if n < 5 || n > maxFrame {
			return fmt.Errorf("frame of %d bytes", n)
		}
		payload := make([]byte, n-5)
		if _, err := io.ReadFull(in, payload); err != nil {
			return err
		}
		s.handle(id, kind, payload)
	}
}

// untilConnected reads the port: before the host's end is connected it reads as empty, behind its hello that means the host is gone.
type untilConnected struct {
	f   *os.File
	had bool
}

func (u *untilConnected) Read(p []byte) (int, error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		n, err := u.f.Read(p)
		if n > 0 {
			u.had = true
		}
		if n > 0 || err != io.EOF || u.had || time.Now().After(deadline) {
			return n, err
		}
	}
}

func (s *server) handle(id uint32, kind byte, payload []byte) {
	switch kind {
	case kindCommand:
		var c command
		if err := json.Unmarshal(payload, &c); err != nil || len(c.Argv) == 0 {
			s.finish(id, result{RC: 127, Error: fmt.Sprintf("command: %v", err)})
			return
		}
		s.start(id, c)
	case kindSignal:
		if r := s.lookup(id); r != nil && len(payload) == 1 {
			r.signal(syscall.Signal(payload[0]))
		}
	case kindInput:
		if r := s.lookup(id); r != nil {
			r.feed(payload)
		}
	case kindWrite:
		s.finish(id, fileResult(writeChunk(payload)))
	case kindRead:
		go func() { s.finish(id, fileResult(s.sendFile(id, string(payload)))) }()
	}
}

func (s *server) lookup(id uint32) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[id]
}

func (s *server) send(id uint32, kind byte, payload []byte) error {
	frame := make([]byte, 9, 9+len(payload))
	binary.BigEndian.PutUint32(frame[0:], uint32(5+len(payload)))
	binary.BigEndian.PutUint32(frame[4:], id)
	frame[8] = kind
	frame = append(frame, payload...)
	s.out.Lock()
	defer s.out.Unlock()
	_, err := s.port.Write(frame)
	return err
}

func (s *server) finish(id uint32, r result) {
	b, err := json.Marshal(r)
	if err == nil {
		err = s.send(id, kindResult, b)
	}
	if err != nil {
		fmt.Println("guest: result:", err)
	}
}

func fileResult(err error) result {
	if err != nil {
		return result{RC: 1, Error: err.Error()}
	}
	return result{}
}
