//go:build race

package node

// raceDetector keeps a shadow of all memory, which tells nothing of what the program takes.
const raceDetector = true
