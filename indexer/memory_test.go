package indexer

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
)

func TestMemoryQuota(t *testing.T) {
	for _, quota := range []int64{1, -1, 256 << 20, MinMemoryQuota - 1} {
		_, err := Config{Dir: t.TempDir(), Managers: []string{"m"}, MemoryQuota: quota}.withDefaults()
		if !errors.Is(err, ErrMemoryQuota) || !strings.Contains(err.Error(), "at least 512 MiB") {
			t.Errorf("quota %d: %v", quota, err)
		}
	}
	for _, quota := range []int64{0, MinMemoryQuota, 8 << 30} {
		c, err := Config{Dir: t.TempDir(), Managers: []string{"m"}, MemoryQuota: quota}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if quota == 0 {
			quota = DefaultMemoryQuota
		}
		if sum := c.QueueBytes + c.CacheBytes + c.MemTableBytes; c.MemoryQuota != quota || sum != quota/4*3 ||
			min(c.QueueBytes, c.CacheBytes, c.MemTableBytes) != quota/4 {
			t.Errorf("quota %d is split into %+v", quota, c)
		}
	}
	c, err := Config{Dir: t.TempDir(), Managers: []string{"m"}, QueueBytes: 1 << 20}.withDefaults()
	if err != nil || c.QueueBytes != 1<<20 || c.CacheBytes != DefaultMemoryQuota/4 {
		t.Errorf("a bound that is given stays: %+v, %v", c, err)
	}
}

// TestNearQuota checks that there is one warning when the quota is nearly used up, and one message when there is room
// again.
func TestNearQuota(t *testing.T) {
	var log bytes.Buffer
	x := &Indexer{log: hclog.New(&hclog.LoggerOptions{Output: &log}),
		cfg: Config{MemoryQuota: 1000 << 20, QueueBytes: 250 << 20}}
	use := func(queue, rss uint64) memoryUse {
		return memoryUse{queue: queue << 20, storage: 500 << 20, quota: 1000 << 20, rss: rss << 20}
	}
	base := uint64(MemoryBase >> 20)
	for _, step := range []struct {
		use      memoryUse
		near     bool
		warnings int
	}{
		{use(10, 300), false, 0}, // a full cache alone is no shortage
		{use(224, 300), false, 0},
		{use(226, 300), true, 1}, {use(249, 300), true, 1},
		{use(210, 300), true, 1}, // between the two limits nothing changes
		{use(190, 300), false, 1},
		{use(10, base+899), false, 1}, {use(10, base+901), true, 2}, {use(10, base+850), true, 2},
		{use(10, base+700), false, 2},
	} {
		x.lookAtMemory(step.use)
		if got := strings.Count(log.String(), "[WARN]"); x.nearQuota.Load() != step.near || got != step.warnings {
			t.Errorf("%+v: near %v, %d warnings; want %v, %d", step.use, x.nearQuota.Load(), got, step.near, step.warnings)
		}
	}
	if got := strings.Count(log.String(), "has room again"); got != 2 {
		t.Errorf("logged %d times that there is room again, want 2\n%s", got, &log)
	}
}

// TestHeapLimit checks that memory outside the Go heap that exceeds its part is taken from the heap's limit, down to
// a minimum.
func TestHeapLimit(t *testing.T) {
	const quota = 512 << 20
	most := int64(quota)
	if storageOutside {
		most = quota / 2
	}
	for _, c := range []struct{ outside, want int64 }{
		{0, most}, {quota/2 + MemoryBase/2 - 1, max(most-most%2, quota/2)}, {quota * 2, 3 * most / 4},
		{1 << 62, 3 * most / 4},
	} {
		if storageOutside || c.outside == 0 || c.outside > quota {
			if got := heapLimit(quota, c.outside); got != c.want {
				t.Errorf("with %d outside the limit is %d, want %d", c.outside, got, c.want)
			}
		}
	}
	if got, want := heapLimit(quota, quota-quota/2+MemoryBase/2+(16<<20)), most-16<<20; storageOutside && got != want {
		t.Errorf("16 MiB too much outside: the limit is %d, want %d", got, want)
	}
	if a, b := goResident(), int64(residentBytes()); a <= 0 || b <= 0 {
		t.Errorf("the Go runtime has %d, the process %d", a, b)
	}
}
