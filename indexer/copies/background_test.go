package copies

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"tidemark/indexer/core"
)

// TestBuildsYieldToScans: while a scan waits, builds get a third of a writer's time, and all of it otherwise; what
// scans wait for is written without a pause.
func TestBuildsYieldToScans(t *testing.T) {
	const tasks, each = 100, 300 * time.Microsecond
	for _, c := range []struct {
		name    string
		class   class
		hurried int
		want    time.Duration
	}{
		{"no caller waits", building, 0, tasks * each},
		{"a scan waits", building, 1, 3 * tasks * each},
		{"two scans wait", building, 2, 3 * tasks * each},
		{"what scans wait for", serving, 1, tasks * each},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLanes(runtime.GOMAXPROCS(0), func(*lane, task) { time.Sleep(each) })
			l.builds = &Background{places: semaphore.NewWeighted(1)}
			for range c.hurried {
				defer l.builds.Hurry()()
			}
			began, n := time.Now(), &lane{}
			for range tasks {
				l.give(n, task{class: c.class})
			}
			for l.left(n) {
				time.Sleep(each / 10)
			}
			l.close()
			if took := time.Since(began); took < c.want || took > c.want+2*leastYield {
				t.Errorf("%s: %d tasks of %s took %s, want %s", c.name, tasks, each, took, c.want)
			}
		})
	}
}

// TestMergesPauseOnlyForScans: a merge runs at a third of its speed beside a scan, and at full speed beside writers
// of ready indexes, which are busy most of the time.
func TestMergesPauseOnlyForScans(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(*Background) (over func())
		want  time.Duration
	}{
		{"no caller waits", func(*Background) func() { return func() {} }, 0},
		{"a writer is at work", (*Background).write, 0},
		{"a scan waits", (*Background).Hurry, 2 * leastYield},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := NewBackground(2)
			defer c.begin(b)()
			began, yield := time.Now(), b.Merger()
			yield(leastYield)
			if took := time.Since(began); took != c.want {
				t.Errorf("%s: a pause of %s, want %s", c.name, took, c.want)
			}
		})
	}
}

// TestPauseDoesNotDelayReadyCopies: a ready copy whose last task was a build's is written before the builder's pause
// is over.
func TestPauseDoesNotDelayReadyCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var served time.Duration
		l := newLanes(runtime.GOMAXPROCS(0), func(_ *lane, t task) {
			if t.class == serving {
				served = time.Since(began)
			} else {
				time.Sleep(mostYield)
			}
		})
		l.builds = &Background{places: semaphore.NewWeighted(1)}
		defer l.builds.Hurry()()
		n := &lane{}
		l.give(n, task{class: building})
		l.give(n, task{class: serving})
		for l.left(n) {
			time.Sleep(leastYield)
		}
		l.close()
		if served != mostYield {
			t.Errorf("after %s, want %s, when what was built is written", served, mostYield)
		}
	})
}

// left reports whether a lane has tasks.
func (l *lanes) left(n *lane) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(n.tasks) > 0
}

// TestBuildsResumeAfterScans: a pause ends when nothing waits any more, whatever is owed, and the debt is then
// dropped. Ending a wait twice does not end another caller's.
func TestBuildsResumeAfterScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Background{places: semaphore.NewWeighted(1)}
		var owed debt
		pauses := func(worked time.Duration) time.Duration {
			began := time.Now()
			b.yield(&owed, worked)
			return time.Since(began)
		}
		one, two := b.Hurry(), b.Hurry()
		one()
		one()
		if p := pauses(time.Hour); p != mostYield {
			t.Errorf("beside a scan after an hour: a pause of %s, want %s", p, mostYield)
		}
		if p := pauses(leastYield / 4); p != 0 {
			t.Errorf("beside a scan after a quarter of the shortest pause: %s", p)
		}
		go func() {
			time.Sleep(3 * time.Millisecond)
			two()
		}()
		if p := pauses(10 * time.Millisecond); p != 3*time.Millisecond {
			t.Errorf("a pause of %s after the last wait was over, want 3ms", p)
		}
		if p := pauses(time.Hour); p != 0 || owed != 0 {
			t.Errorf("no caller waits: a pause of %s, owed %d", p, owed)
		}
	})
}

// TestPurgesDoNotPauseBuilds: builds do not pause for the removal of tombstones, which nothing waits for, but do for
// writes to a copy that serves scans.
func TestPurgesDoNotPauseBuilds(t *testing.T) {
	k, b := testBucketLoop(t), NewBackground(2)
	pauses := make(chan bool, 1)
	k.lanes.lanes = newLanes(2, func(*lane, task) {
		b.mu.Lock()
		defer b.mu.Unlock()
		pauses <- b.all.waiting > 0
	})
	k.lanes.builds = b
	k.handPurge(&core.Handed{Purge: core.Purge{Copy: 1}})
	if <-pauses {
		t.Error("builds pause for a purge")
	}
	k.lanes.give(&lane{}, task{class: serving})
	if !<-pauses {
		t.Error("builds do not pause for a copy that serves")
	}
	k.lanes.close()
}

// TestHungWriterDoesNotPauseBuilds: beside a serving copy whose write hangs, builds continue at full speed, also
// those of other buckets.
func TestHungWriterDoesNotPauseBuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn, hangs := make(chan struct{}), &lane{}
		l := newLanes(2, func(n *lane, _ task) {
			if n == hangs {
				<-goOn
			}
		})
		l.builds = NewBackground(2)
		l.give(hangs, task{class: serving})
		synctest.Wait()
		pauses := func() time.Duration {
			began, owed := time.Now(), debt(0)
			l.builds.yield(&owed, leastYield)
			return time.Since(began)
		}
		if p := pauses(); p != yields*leastYield {
			t.Errorf("beside a write that has just begun: a pause of %s, want %s", p, yields*leastYield)
		}
		time.Sleep(hurryPatience)
		synctest.Wait()
		if p := pauses(); p != 0 {
			t.Errorf("beside one that hangs: a pause of %s", p)
		}
		close(goOn)
		l.close()
	})
}
