package doctor

import (
	"io/fs"
	"strings"
)

// container tells what of the surroundings makes a difference (docs/containers.md).
func (h *Host) container() Check {
	var hints []string
	for file, name := range map[string]string{"/.dockerenv": "docker", "/run/.containerenv": "podman", "/var/run/secrets/kubernetes.io": "kubernetes"} {
		if h.exists(file) {
			hints = append(hints, name)
		}
	}
	if m := strings.Fields(h.text("/proc/self/uid_map")); len(m) == 3 && (m[0] != "0" || m[1] != "0") {
		hints = append(hints, "a user namespace")
	}
	if len(hints) == 0 {
		return ok("none seen")
	}
	return ok("in %s: mount the directory of the socket, not the file, and give the daemon an address that peers can dial", strings.Join(hints, ", "))
}

// libraries are looked for as files: loading them would run their code.
var libraryDirs = []string{"lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/cuda/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"}

func (h *Host) library(prefix string) string {
	for _, dir := range libraryDirs {
		entries, err := fs.ReadDir(h.FS, dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefix+".so") {
				return "/" + dir + "/" + e.Name()
			}
		}
	}
	return ""
}

func (h *Host) cuda() Check {
	lib := h.library("libcuda")
	if lib == "" && !h.exists("/dev/nvidiactl") {
		return ok("no CUDA device; this build moves host memory")
	}
	if lib == "" {
		lib = "no libcuda"
	}
	return ok("a CUDA device, %s; this build moves host memory, so device memory goes through the host's", lib)
}
