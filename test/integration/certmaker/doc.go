// Command certmaker makes the certificates of the integration tests, which so need no tool that a machine may lack:
//
//	certmaker DIR AUTHORITY/FOLDER=NODE[,expired][,trusts:AUTHORITY+AUTHORITY]...
//	certmaker DIR nats:FOLDER=USER+USER...
//
// Each argument writes node.crt, node.key and ca.crt into DIR/AUTHORITY/FOLDER: a certificate of AUTHORITY for NODE, and whom its
// holder trusts (AUTHORITY alone unless others are said). An authority lives as long as the command: its key is written nowhere.
//
// An argument of the second kind writes what a NATS server with accounts needs: server.conf, an operator and an account for its
// configuration, and USER.creds for each user.
package main
