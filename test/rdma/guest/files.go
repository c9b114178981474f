package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// writeChunk writes one part of a file, the first one anew. Chunks of one file come in order on one port.
func writeChunk(payload []byte) error {
	head, data, ok := bytes.Cut(payload, []byte("\n"))
	var c chunk
	if err := json.Unmarshal(head, &c); err != nil || !ok {
		return errors.New("bad head of a chunk")
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if c.Append {
		flags = os.O_WRONLY | os.O_APPEND
	} else if err := os.MkdirAll(filepath.Dir(c.Path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(c.Path, flags, os.FileMode(c.Mode))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func (s *server) sendFile(id uint32, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 256<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			if err := s.send(id, kindData, buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
