// Command tidemark is the one binary of the product; see package internal/cli.
package main

import (
	"os"

	"tidemark/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
