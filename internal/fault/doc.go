// Package fault is the project's one table of errors and the type that carries them.
//
// Terms. A Code is what a failure is; it has a name, a number on the wire, a group and a default answer to
// "is a retry safe". An Error is one failure that happened: its code, the operation, peer, region and field it
// concerns, and whether target bytes may have been partly written. A sentinel (ErrLeaseExpired, ...) stands for
// every Error of its code: errors.Is(err, fault.ErrLeaseExpired).
//
// table.json is the source; `go generate ./internal/fault` writes the Go constants and sentinels (codes_gen.go),
// those of the Go SDK (sdk/go/errors_gen.go), the Python exceptions (sdk/python/src/kvxfer/_faults.py) and docs/errors.md.
//
// Invariants, each with the test that holds it:
//   - the generated files say what the table says: TestGeneratedFilesAreCurrent
//   - codes and names are unique and every group exists: TestTableIsSound
//   - each has a page that says causes and what to do: TestEveryErrorHasAPage
//   - an Error survives the wire with every field: TestErrorSurvivesTheWire; one may differ from its code in whether
//     a retry is safe: TestAnErrorMayDifferFromTheTable
//   - errors.Is matches by code through wrapping: TestIsMatchesByCode
package fault
