// Package natsaccess is what proves a process to a NATS server and a NATS server to a process: credentials and
// certificates from files.
//
// Terms. Files are the paths, one for each setting of `kvxfer serve` that begins with nats-; errors name the settings, because
// that is what their reader can change. The credentials are one of: a credentials file (JWT and seed), a user with a password
// file, a token file. A token or password file is one line.
//
// Every file is read when a connection begins, by the client and by the embedded server's TLS, so that it can be replaced
// under a running process; the embedded server's token and password are read at its start only. No secret is kept longer than
// that, logged or put into an error.
//
// Invariants, each with the test that holds it:
//   - a file that cannot be used is named with its setting, and nothing of its contents: TestFilesAreNamed
//   - a refusal, and a certificate that is not believed, are told apart from a server that is not there, and name the
//     setting: TestExplain; of real servers natskv's TestWrongAccessIsSaidAtOnce
//   - a certificate is read again when it changed, and a broken one does not replace it: TestServerCertificateIsReadAgain
package natsaccess
