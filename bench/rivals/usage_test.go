package rivals

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// selfCPU returns the processor time of this process so far, threadCPU that of the calling thread.
func selfCPU() time.Duration   { return rusage(syscall.RUSAGE_SELF) }
func threadCPU() time.Duration { return rusage(1) } // RUSAGE_THREAD

func rusage(who int) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(who, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// blocks returns the disk space of a file: badger's files are sparse.
func blocks(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}

// clockTick is the unit of /proc/PID/stat (USER_HZ, 100 on every Linux that Go runs on).
const clockTick = 10 * time.Millisecond

// process holds what /proc reports about a process.
type process struct {
	parent   int
	own      time.Duration // user and system
	children time.Duration // of children that it has waited for
}

func processOf(pid int) (p process, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	_, after, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(after) // from field 3, the state
	if len(f) < 15 {
		return p, false
	}
	n := func(i int) int { v, _ := strconv.Atoi(f[i]); return v }
	return process{parent: n(1), own: time.Duration(n(11)+n(12)) * clockTick,
		children: time.Duration(n(13)+n(14)) * clockTick}, true
}

// familyCPU returns the processor time of a process and its descendants, including those that have ended.
func familyCPU(root int) (sum time.Duration) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	all := map[int]process{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := processOf(pid); ok {
				all[pid] = p
			}
		}
	}
	for pid, p := range all {
		for at := pid; at > 1; at = all[at].parent {
			if at == root {
				sum += p.own + p.children
				break
			}
		}
	}
	return sum
}
