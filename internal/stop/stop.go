// Package stop bounds how long a process takes to stop in order: a disk that hangs has no bound of its own.
package stop

import "time"

// Within returns run's error. If run does not end within most after stopping was closed, late is true: run goes on, and
// the process has to exit.
func Within(stopping <-chan struct{}, most time.Duration, run func() error) (late bool, err error) {
	over := make(chan error, 1)
	go func() { over <- run() }()
	select {
	case err := <-over:
		return false, err
	case <-stopping:
	}
	bound := time.NewTimer(most)
	defer bound.Stop()
	select {
	case err := <-over:
		return false, err
	case <-bound.C:
		return true, nil
	}
}
