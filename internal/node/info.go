package node

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Info is what STATE/node.json says while the node serves. Scripts wait for the file and read the addresses that the
// kernel chose.
type Info struct {
	Node     string `json:"node"`
	Epoch    string `json:"epoch"`
	Pid      int    `json:"pid"`
	Version  string `json:"version"`
	Socket   string `json:"socket"`
	PeerAddr string `json:"peer_addr"`
	HTTPAddr string `json:"http_addr"`
	NATSURL  string `json:"nats_url"` // of the embedded server when it listens
}

// Clients is how many are attached: a client that detached counts until its frames are read and its memory is fenced.
func (n *Node) Clients() int { return n.engine.Stats().Clients }

const infoName = "node.json"

func writeInfo(dir string, info Info) error {
	raw, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return fault.Wrap(fault.Internal, "start", err)
	}
	tmp := filepath.Join(dir, infoName+".tmp")
	if err := os.WriteFile(tmp, append(raw, '\n'), 0o600); err != nil {
		return fault.Wrap(fault.Internal, "start", err)
	}
	return fault.Wrap(fault.Internal, "start", os.Rename(tmp, filepath.Join(dir, infoName)))
}

func removeInfo(dir string) { _ = os.Remove(filepath.Join(dir, infoName)) }
