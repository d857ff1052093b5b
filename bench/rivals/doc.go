// Package rivals compares the product's store with badger, bbolt and bare Pebble behind the same flush, and the product
// with a PostgreSQL that is fed by the same DCP streams, each in one run. It is a module of its own, so that the
// product needs none of theirs. The figures stand in docs/rivals.md.
//
//	cd bench/rivals
//	go test                                                              all stores hold the same rows
//	go test -run '^$' -bench Stores -benchtime 1x -timeout 1h
//	go test -run '^$' -bench Postgres -benchtime 1x -timeout 1h          with Debian's package postgresql
//	go test -run '^$' -bench Live -benchtime 1x                           live updates alone, by role; two binaries by turns
package rivals
