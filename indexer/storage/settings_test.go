package storage

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"
)

var (
	settingNames = flag.String("settings", "present,again", "what BenchmarkSettings compares, separated by commas; "+
		"'all' for everything")
	settingTurns = flag.Int("settings.rounds", 100, "stability timestamps that each of them takes")
)

// setting is one way to open a store.
type setting struct {
	name   string
	o      Options
	copies int // 0: liveCopies
}

func tuned(name string, tune func(o *pebble.Options)) setting {
	return setting{name: name, o: Options{tune: tune}}
}

func levels(o *pebble.Options, change func(level int, l *pebble.LevelOptions)) {
	for i := range o.Levels {
		change(i, &o.Levels[i])
	}
}

// otherSettings returns those described in docs/performance.md.
func otherSettings() []setting {
	l0 := func(n int) func(o *pebble.Options) { return func(o *pebble.Options) { o.L0CompactionThreshold = n } }
	blocks := func(n int) func(o *pebble.Options) {
		return func(o *pebble.Options) { levels(o, func(_ int, l *pebble.LevelOptions) { l.BlockSize = n }) }
	}
	return []setting{
		{name: "present", o: Options{}},
		{name: "again", o: Options{}},
		tuned("restart-4", func(o *pebble.Options) {
			levels(o, func(_ int, l *pebble.LevelOptions) { l.BlockRestartInterval = 4 })
		}),
		tuned("restart-64", func(o *pebble.Options) {
			levels(o, func(_ int, l *pebble.LevelOptions) { l.BlockRestartInterval = 64 })
		}),
		tuned("block-4K", blocks(4<<10)), tuned("block-32K", blocks(32<<10)), tuned("block-64K", blocks(64<<10)),
		tuned("l0-2", l0(2)), tuned("l0-4", l0(4)), tuned("l0-16", l0(16)),
		{name: "memory-64M", o: Options{MemTableBytes: 64 << 20}}, {name: "memory-1G", o: Options{MemTableBytes: 1 << 30}},
		{name: "kept-nothing", o: Options{kept: 1}}, {name: "kept-4M", o: Options{kept: 4 << 20}},
		{name: "compactions-2", o: Options{Compactions: 2}},
		{name: "cache-32M", o: Options{CacheBytes: 32 << 20}}, {name: "cache-1G", o: Options{CacheBytes: 1 << 30}},
		tuned("no-filter", func(o *pebble.Options) {
			levels(o, func(_ int,
				l *pebble.LevelOptions) {
				l.FilterPolicy = nil
			})
		}),
		tuned("no-filter-L6", func(o *pebble.Options) {
			levels(o, func(i int, l *pebble.LevelOptions) {
				if i == 6 {
					l.FilterPolicy = pebble.NoFilterPolicy
				}
			})
		}),
		tuned("filter-5", func(o *pebble.Options) {
			levels(o, func(_ int, l *pebble.LevelOptions) { l.FilterPolicy = backFilter{bloom.FilterPolicy(5)} })
		}),
		tuned("snappy", func(o *pebble.Options) {
			levels(o, func(_ int, l *pebble.LevelOptions) {
				l.Compression = func() *block.CompressionProfile { return block.SnappyCompression }
			})
		}),
		tuned("snappy-L6", func(o *pebble.Options) {
			levels(o, func(i int, l *pebble.LevelOptions) {
				if i == 6 {
					l.Compression = func() *block.CompressionProfile { return block.SnappyCompression }
				}
			})
		}),
		tuned("no-read-compactions", func(o *pebble.Options) { o.Experimental.ReadSamplingMultiplier = -1 }),
		tuned("read-compactions-1", func(o *pebble.Options) { o.Experimental.ReadSamplingMultiplier = 1 }),
		tuned("read-compactions-4", func(o *pebble.Options) { o.Experimental.ReadSamplingMultiplier = 4 }),
		tuned("no-table-stats", func(o *pebble.Options) { o.DisableTableStats = true }),
		tuned("no-multilevel",
			func(o *pebble.Options) { o.Experimental.MultiLevelCompactionHeuristic = pebble.NoMultiLevel{} }),
		tuned("tables-4M", func(o *pebble.Options) {
			o.FlushSplitBytes = 4 << 20
			for i := range o.TargetFileSizes {
				o.TargetFileSizes[i] = 4 << 20
			}
		}),
		{name: "slices-1", copies: 1}, {name: "slices-2", copies: 2}, {name: "slices-3", copies: 3},
		{name: "slices-6", copies: 6},
		tuned("base-16M", func(o *pebble.Options) { o.LBaseMaxBytes = 16 << 20 }),
	}
}

// BenchmarkSettings compares settings of the store: each handles one stability timestamp of BenchmarkLive after the
// other, by turns, with everything that it causes, and some scans, which read an eighth of 100 rows from each slice.
// Then follow scans at rest, and those of compacted stores. More than ten lines of results take -v.
func BenchmarkSettings(b *testing.B) {
	var all []setting
	for _, s := range otherSettings() {
		if *settingNames == "all" || slices.Contains(strings.Split(*settingNames, ","), s.name) {
			all = append(all, s)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		compared := make([]*comparedStore, len(all))
		for i, s := range all {
			compared[i] = &comparedStore{setting: s, live: openLive(b, cmp.Or(s.copies, liveCopies), s.o),
				random: randomUpdates()}
			compared[i].rest()
		}
		for turn := range *settingTurns {
			for i := range compared {
				compared[(i+turn)%len(compared)].round() // later ones have a colder cache
			}
			for _, c := range compared {
				c.live.scan(&c.busy, c.random, 30)
			}
		}
		for _, c := range compared {
			for i := range c.live.all {
				c.live.persist(i)
			}
			c.rest()
			c.shape = c.live.shape()
		}
		for range 30 {
			for _, c := range compared {
				c.live.scan(&c.quiet, c.random, 200)
			}
		}
		for _, c := range compared {
			c.live.compact()
		}
		for range 30 {
			for _, c := range compared {
				c.live.scan(&c.whole, c.random, 200)
			}
		}
		for _, c := range compared {
			b.Logf("%-20s %6.2f µs/doc; scans: beside updates %6.1f, at rest %6.1f (%s), compacted %6.1f µs; %d MiB", c.name,
				float64(c.spent.Nanoseconds())/1000/float64(c.live.docs), c.busy.each(), c.quiet.each(), c.shape, c.whole.each(),
				c.live.disk()>>20)
			c.live.close()
		}
	}
	b.ReportMetric(0, "ns/op")
}

type comparedStore struct {
	setting
	live               *liveStore
	random             func() (uint64, uint64)
	spent              time.Duration
	busy, quiet, whole scanCost
	shape              string
}

func (c *comparedStore) round() {
	c.live.making = 0
	before := cpu()
	c.live.round()
	c.rest()
	c.spent += cpu() - before - c.live.making
}

// rest waits until all writes have ended, and nothing is to be compacted.
func (c *comparedStore) rest() {
	for {
		busy := false
		for _, e := range c.live.store.res.memory.all() {
			oldest, pending := e.reap()
			if pending > 0 {
				<-oldest
				busy = true
			}
		}
		all := c.live.store.res.compactions
		all.mu.Lock()
		busy = busy || all.running > 0 || all.waiting > 0
		all.mu.Unlock()
		if !busy {
			return
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

type scanCost struct {
	n   int
	cpu time.Duration
}

func (s *scanCost) each() float64 { return float64(s.cpu.Nanoseconds()) / 1000 / float64(s.n) }

// scan reads 100 rows, equally many from each slice, the given number of times, from its newest snapshot.
func (l *liveStore) scan(into *scanCost, next func() (uint64, uint64), times int) {
	rows := (100 + len(l.all) - 1) / len(l.all)
	var snaps []*Snapshot
	for _, s := range l.all {
		snap, err := s.Snapshot()
		if err != nil {
			l.b.Fatal(err)
		}
		snaps = append(snaps, snap)
	}
	before := cpu()
	for range times {
		low := benchUpdate(next()).Keys[0]
		low[1] = min(low[1], 'y')
		for _, snap := range snaps {
			r, err := snap.Rows(context.Background(), Range{Low: low}, false)
			if err != nil {
				l.b.Fatal(err)
			}
			n := 0
			for n < rows && r.Next() {
				n++
			}
			if err := r.Close(); err != nil || n < rows {
				l.b.Fatalf("%d rows (%v)", n, err)
			}
		}
	}
	into.cpu += cpu() - before
	into.n += times
	for _, snap := range snaps {
		if err := snap.Close(); err != nil {
			l.b.Fatal(err)
		}
	}
}

func (l *liveStore) engines() (all []*pebbleEngine) {
	for _, s := range l.all {
		all = append(all, s.gen.eng.(*pebbleEngine))
	}
	return all
}

// shape returns the number of sorted runs in each level of the first slice.
func (l *liveStore) shape() string {
	m := l.engines()[0].db.Metrics()
	text := ""
	for i := range m.Levels {
		if n := m.Levels[i].Sublevels; n > 0 {
			text += fmt.Sprintf("L%d %d runs %d tables ", i, n, m.Levels[i].TablesCount)
		}
	}
	return strings.TrimSpace(text)
}

func (l *liveStore) compact() {
	for i := range l.held {
		for _, snap := range l.held[i] {
			if err := snap.Close(); err != nil {
				l.b.Fatal(err)
			}
		}
		l.held[i] = nil
	}
	for _, e := range l.engines() {
		if err := e.db.Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
			l.b.Fatal(err)
		}
	}
}

func (l *liveStore) disk() (sum int64) {
	for _, s := range l.all {
		sum += s.Stats().DiskBytes
	}
	return sum
}

// BenchmarkScan100 measures scans of 100 rows, an eighth from each slice: during updates, with the newest twelve
// stability timestamps in memory, and at rest.
func BenchmarkScan100(b *testing.B) {
	l := openLive(b, liveCopies, Options{})
	c := &comparedStore{live: l, random: randomUpdates()}
	for range 12 {
		l.round()
	}
	for _, name := range []string{"beside", "rest"} {
		b.Run(name, func(b *testing.B) {
			var cost scanCost
			l.scan(&cost, c.random, b.N)
			b.ReportMetric(cost.each(), "cpu-µs/scan")
		})
		for i := range l.all {
			l.persist(i)
		}
		c.rest()
	}
	l.close()
}
