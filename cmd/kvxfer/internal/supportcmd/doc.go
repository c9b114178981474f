// Package supportcmd is `kvxfer support`: one archive with what helps to find a fault, for whoever is asked for help.
//
// Nothing in it is secret by what is asked for, not by searching it afterwards: neither the environment nor any file of the
// daemon's is in it; the configuration is what the daemon itself tells, without URLs that may hold passwords; logs never hold
// tickets or keys; stacks have no arguments. docs/doctor.md lists the files.
//
// Invariants, each with the test that holds it:
//   - what could not be had is named with the reason, and the rest is there: TestBundleWithoutADaemon
//   - the file is its user's alone and no other file is overwritten: TestBundleWithoutADaemon
//   - docs/doctor.md lists the files: TestPageListsEveryFile
//   - rows are of every tenant for who may see them, else of the own: TestRowsOfWhoMaySeeThem
//   - secrets planted wherever the daemon has them are not in it: test/integration test_support_holds_no_secret
package supportcmd
