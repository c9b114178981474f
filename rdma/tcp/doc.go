// Package tcp is the provider of the fabric contract over TCP.
package tcp
