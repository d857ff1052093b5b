package indexer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"time"

	"tidemark/indexer/copies"
	"tidemark/indexer/keeper"
)

// Memory quotas in bytes.
const (
	// MinMemoryQuota is the smallest quota. Below it the queue cannot hold a small snapshot of each of 1024 vbuckets
	// while copies are written.
	MinMemoryQuota = 512 << 20
	// DefaultMemoryQuota is the quota of a Config that sets none.
	DefaultMemoryQuota = 1 << 30
	// MemoryBase is what a process needs in addition to its quota, for code, stacks, connections and the runtime itself.
	// The target for the resident memory is below 1.1 times the quota plus MemoryBase.
	MemoryBase = 128 << 20
)

const (
	// quotaParts is the number of equal parts of a quota: one each for the queue, the cache and the memtables, and
	// one for scans, batches in preparation, and garbage.
	quotaParts = 4
	// pieceParts is the fraction of the memtables' share that one write of one copy may take: the write briefly
	// exists three times.
	pieceParts = 16
	// trimShare is the share of the quota, in percent, from which on the C library's freed memory is returned to the
	// system.
	trimShare = 60
	// gcPercent is GOGC of an indexer that owns its process, unless the environment sets it. The collector then runs
	// a third as often, which saves a sixth of the processor time of a build; the memory limit bounds the garbage.
	gcPercent = 300
	// nearQuota and farQuota are the shares of the quota, in percent, at which the warning starts and ends.
	nearQuota = 90
	farQuota  = 80
)

// ErrMemoryQuota is wrapped when a memory quota is too small.
var ErrMemoryQuota = errors.New("memory quota too small")

// CheckMemoryQuota reports whether an indexer can work with a quota. Errors wrap ErrMemoryQuota.
func CheckMemoryQuota(quota int64) error {
	if quota < MinMemoryQuota {
		return fmt.Errorf("%w: %s (%d bytes); an indexer needs at least %s: give it more, as --memory-quota 512MiB, or run "+
			"fewer indexers on this machine",
			ErrMemoryQuota, mebibytes(quota), quota, mebibytes(MinMemoryQuota))
	}
	return nil
}

func mebibytes(n int64) string { return strconv.FormatFloat(float64(n)/(1<<20), 'f', -1, 64) + " MiB" }

// splitQuota sets the sizes that the configuration leaves open.
func (c *Config) splitQuota() error {
	if c.MemoryQuota == 0 {
		c.MemoryQuota = DefaultMemoryQuota
	}
	if err := CheckMemoryQuota(c.MemoryQuota); err != nil {
		return err
	}
	for _, part := range []*int64{&c.QueueBytes, &c.CacheBytes, &c.MemTableBytes} {
		if *part <= 0 {
			*part = c.MemoryQuota / quotaParts
		}
	}
	return nil
}

// pieceBytes returns the largest size of one write of one copy, in bytes.
func (c *Config) pieceBytes() int { return int(min(copies.WriteBytes, c.MemTableBytes/pieceParts)) }

// heapLimit returns the Go runtime's memory limit for a process that has the given number of bytes resident outside
// the Go runtime. It is what is left of the quota and half of the base, but at most the part of the quota that is
// meant for the heap, and at least so much that a full queue and its writes do not keep the collector busy all the
// time.
func heapLimit(quota, outside int64) int64 {
	most := quota
	if storageOutside {
		most -= 2 * quota / quotaParts // cache and memtables
	}
	return max(min(most, quota+MemoryBase/2-outside), 3*most/4)
}

// limitProcess sets the Go runtime's memory limit, unless GOMEMLIMIT is set, and makes the C library return free
// memory to the system.
func (x *Indexer) limitProcess(rss uint64) {
	if !x.cfg.OwnProcess {
		return
	}
	if rss > uint64(x.cfg.MemoryQuota)/100*trimShare {
		trimHeap()
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapLimit(x.cfg.MemoryQuota, max(int64(min(rss, math.MaxInt64))-goResident(), 0)))
	}
}

// goResident returns the bytes that the Go runtime holds and has not returned to the system.
func goResident() int64 {
	all := []runtimemetrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	runtimemetrics.Read(all)
	return int64(all[0].Value.Uint64() - all[1].Value.Uint64())
}

// memoryUse is the use of the memory quota, in bytes.
type memoryUse struct {
	queue, storage, quota, rss uint64
}

func (x *Indexer) memoryUse() memoryUse {
	u := memoryUse{storage: uint64(max(x.store.Memory().Used, 0)), quota: uint64(x.cfg.MemoryQuota), rss: residentBytes()}
	for _, k := range x.allBuckets() {
		u.queue += uint64(max(k.QueueBytes(), 0))
	}
	return u
}

// near reports whether the use is at or above the given percentage of the quota, by returning the reason, else "".
// The cache does not count: it is full whenever there is much to read, which is no shortage.
func (u memoryUse) near(queueLimit int64, percent uint64) (why string) {
	switch {
	case u.queue >= uint64(queueLimit)/100*percent:
		return fmt.Sprintf("the queue holds %s, its limit is %s: at the limit the indexer accepts no more and its "+
			"projectors wait",
			mebibytes(int64(min(u.queue, math.MaxInt64))), mebibytes(queueLimit))
	case u.rss >= MemoryBase+u.quota/100*percent:
		return fmt.Sprintf("the process holds %s, its quota is %s", mebibytes(int64(min(u.rss, math.MaxInt64))),
			mebibytes(int64(min(u.quota, math.MaxInt64))))
	}
	return ""
}

// watchMemory logs a warning each time the quota becomes nearly used up.
func (x *Indexer) watchMemory(ctx context.Context) error {
	tick := time.NewTicker(keeper.MeasureEvery)
	defer tick.Stop()
	if x.cfg.OwnProcess && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	x.limitProcess(residentBytes())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			u := x.memoryUse()
			x.lookAtMemory(u)
			x.limitProcess(u.rss)
		}
	}
}

func (x *Indexer) lookAtMemory(u memoryUse) {
	share := uint64(nearQuota)
	if x.nearQuota.Load() {
		share = farQuota
	}
	why := u.near(x.cfg.QueueBytes, share)
	switch was := x.nearQuota.Swap(why != ""); {
	case why != "" && !was:
		x.log.Warn("memory quota is nearly used up; use a larger --memory-quota, more indexers or fewer indexes", "why",
			why, "quota", u.quota, "rss", u.rss, "queue", u.queue, "storage", u.storage)
	case why == "" && was:
		x.log.Info("memory quota has room again", "quota", u.quota, "rss", u.rss)
	}
}

// residentBytes returns the process's resident memory, 0 if the system does not report it.
func residentBytes() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(fields[1], 10, 63)
	if err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
