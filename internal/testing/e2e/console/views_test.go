package console

import (
	"fmt"
	"strings"
	"testing"

	"tidemark/internal/failpoint"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
)

// readable returns the faults of what a page shows: words that show a program's mistake, text with too little
// contrast to its background (WCAG: 4.5 to 1), and truncated text.
const readable = `(() => {
	const wrong = [];
	const bad = document.body.innerText.match(/.*(\bundefined\b|\bNaN\b|\[object |Invalid Date|\bInfinity\b).*/g);
	if (bad) wrong.push(...bad);
	const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
		.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = (n) => {
		for (; n; n = n.parentElement) {
			const c = rgb(getComputedStyle(n).backgroundColor);
			if (c.length === 3 || c[3] === 1) return c;
		}
		return [255, 255, 255];
	};
	for (const n of document.querySelectorAll('body *')) {
		const own = [...n.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
		const style = getComputedStyle(n);
		if (!own || n.closest('svg') || n.disabled || style.visibility === 'hidden' || !n.getClientRects().length) continue;
		const say = n.textContent.trim().slice(0, 40);
		const a = light(rgb(style.color)), b = light(behind(n));
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (contrast < 4.5) wrong.push(` + "`${contrast.toFixed(1)} to 1: ${n.tagName}.${n.className}: ${say}`" + `);
		if (style.overflowX === 'hidden' && n.scrollWidth > n.clientWidth + 1 && !n.title) {
			wrong.push(` + "`cut off: ${n.tagName}.${n.className}: ${say}`" + `);
		}
	}
	for (const n of document.querySelectorAll('.scroll:not(.keep)')) {
		if (innerWidth <= 640 && n.scrollWidth > n.clientWidth + 1) {
			wrong.push(` + "`beyond the right edge: ${n.querySelector('table').ariaLabel}`" + `);
		}
	}
	return [...new Set(wrong)];
})()`

// TestEveryViewWhileSlicesMove checks during a rebalance that each view is readable, on a telephone and on a desktop,
// light and dark, and that the views about moves show the moves.
func TestEveryViewWhileSlicesMove(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	fail := failpoint.Dir(t.TempDir())
	up := testcluster.Start(t, t.TempDir(), "--sample", "--failpoints", string(fail))
	harness.Eventually(t, patience, "the sample is there", func() (bool, string) {
		return strings.Contains(up.Output(), "ready; Ctrl-C ends it"), up.Output()
	})
	const held = "done"
	if err := fail.SetHold(held); err != nil {
		t.Fatal(err)
	}
	c := up.Client()
	if _, err := c.Rebalance(t.Context(), v1.RebalanceRequest{Remove: []string{"i2"}}, false); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, "a slice is on its way", func() (bool, string) {
		return fail.Held(held), fmt.Sprint(c.Rebalances(t.Context()))
	})
	b.visit(up.Manifest().Managers[0].REST + "/console/")
	b.shows("Everything answers")
	for _, width := range []int{1280, 400} {
		b.size(width, 860)
		for _, scheme := range []string{"light", "dark"} {
			b.scheme(scheme)
			everyView(b, func(view string) {
				if says, ok := moving[view]; ok {
					b.shows(says)
				}
				where := fmt.Sprintf("%s, %s, %d wide", view, scheme, width)
				b.until("it is not wider than the window: "+where,
					fmt.Sprintf("document.documentElement.scrollWidth <= %d", width))
				var wrong []string
				if err := b.eval(readable, &wrong); err != nil || len(wrong) > 0 {
					t.Errorf("%s: %s %v", where, strings.Join(wrong, "\n\t"), err)
				}
				see(b, fmt.Sprintf("moving-%d-%s-%s", width, scheme, view))
			})
		}
	}
	quiet(b)
}

// moving maps views to what they show while slices move away from i2.
var moving = map[string]string{
	"overview": "0 of 8 moves done", "placement": "i2 → i", "processes": "leaving",
}
