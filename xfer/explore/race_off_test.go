//go:build !race

package explore_test

const race = false
