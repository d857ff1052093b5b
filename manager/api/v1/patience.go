package v1

import (
	"strings"
	"time"
)

// The longest time that a manager takes for a call. A client with a shorter timeout retries calls that would have
// succeeded.
const (
	ReadTimeout   = 5 * time.Second
	WriteTimeout  = 10 * time.Second // DDL, and other changes of the replicated state
	MemberTimeout = 15 * time.Second // a change of members waits for commits, and for a transfer of leadership
	// JoinTimeout is for adding a manager with heartbeats of up to 2 s. With slower ones a manager may take longer.
	JoinTimeout   = 70 * time.Second
	BackupTimeout = 100 * time.Second
	ScanTimeout   = 10 * time.Minute // for a whole scan
	VerifyTimeout = 24 * time.Hour   // for a whole verification
	// StatisticsPatience limits the wait for samples of all slices of an index.
	StatisticsPatience = 30 * time.Second
	StatisticsTimeout  = ReadTimeout + StatisticsPatience
)

// TimeoutOf returns the longest time that a manager takes for a user's call, by its method and its path without a
// query. Event streams and metrics have timeouts of their own.
func TimeoutOf(method, path string) time.Duration {
	if method == "POST" {
		switch path[strings.LastIndexByte(path, ':')+1:] {
		case "scan", "count":
			return ScanTimeout
		case "verify":
			return VerifyTimeout
		case "statistics":
			return StatisticsTimeout
		case "locate":
			return ReadTimeout
		case "join":
			return JoinTimeout
		}
	}
	under := func(parent string) bool { return strings.HasPrefix(path, parent) }
	switch {
	case path == "/v1/backup", path == "/v1/restore":
		return BackupTimeout
	case method == "GET", path == "/v1/slow-scans", under("/v1/scans/"), under("/v1/cluster/nodes/"):
		return ReadTimeout
	case under("/v1/cluster/"):
		return MemberTimeout
	}
	return WriteTimeout
}
