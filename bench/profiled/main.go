// Command profiled is the product's binary with a CPU profiler: SIGUSR1 starts a profile, SIGUSR2 ends it and writes
// the file TIDEMARK_PROFILE_DIR/<role>-<id>-<pid>.pprof. The benchmarks run it instead of the product when profiles
// are requested; the product itself contains no profiler.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"syscall"

	"tidemark/internal/cli"
)

func main() {
	if dir := os.Getenv("TIDEMARK_PROFILE_DIR"); dir != "" && len(os.Args) > 1 {
		signals := make(chan os.Signal, 4)
		signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
		go profile(filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", name(os.Args[1:]), os.Getpid())), signals)
	}
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// name returns role and id of the process, from its command line.
func name(args []string) string {
	for i, a := range args[:len(args)-1] {
		if a == "--id" {
			return args[0] + "-" + args[i+1]
		}
	}
	return args[0]
}

// profile writes the last requested profile to path.
func profile(path string, signals <-chan os.Signal) {
	var file *os.File
	for s := range signals {
		pprof.StopCPUProfile()
		if file != nil {
			_ = file.Close()
			file = nil
		}
		if s != syscall.SIGUSR1 {
			continue
		}
		var err error
		if file, err = os.Create(path); err == nil {
			err = pprof.StartCPUProfile(file)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
	}
}
