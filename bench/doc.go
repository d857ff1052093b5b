// Package bench contains the whole-system benchmarks: the product's own processes on loopback, compared with the bars
// of docs/performance.md, both sides of a comparison in the same run. They are `go test -bench` functions, so that a
// plain `go test ./...` runs none of them. docs/performance.md has the figures and their explanation.
//
//	go test ./bench -run '^$' -bench . -benchtime 1x -timeout 1h
//
// TIDEMARK_PROFILE_DIR=DIR writes a CPU profile of every process of the measured part.
package bench
