// Package rivals compares the product's store with badger, bbolt and bare Pebble behind the same flush, in the same run. It
// is a module of its own, so that the product needs none of theirs. The figures stand in docs/performance.md.
//
//	cd bench/rivals
//	go test                                                              all stores hold the same rows
//	go test -run '^$' -bench Stores -benchtime 1x -timeout 1h
package rivals
