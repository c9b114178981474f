// Package deptest holds the direction of the imports: its tests state who may not import whom, and why.
package deptest
