// Package console tests the console as users see it: in a real browser, with a real cluster, with and without TLS and
// users.
package console

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemark/client"
	"tidemark/errcode"
	"tidemark/internal/localcluster"
	"tidemark/internal/testing/atonce"
	"tidemark/internal/testing/e2e/harness"
	"tidemark/internal/testing/testcluster"
	"tidemark/manager/api/v1"
	"tidemark/wire"
)

// pictures makes the tests write the pictures of docs/console.md.
var pictures = flag.Bool("pictures", false, "write the pictures of docs/console.md")

const (
	rootPassword   = "root-of-the-console-1"
	readerPassword = "reader-of-the-console-1"
	maxPicture     = 80 << 10
)

func TestMain(m *testing.M) {
	atonce.Tests(2) // each has a browser, which takes as much memory as the cluster
	harness.Main(m)
}

// TestOpen uses every view, for reading and writing, of a cluster without users, with the sample data.
func TestOpen(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	up := testcluster.Start(t, t.TempDir(), "--sample")
	harness.Eventually(t, patience, "the sample is there", func() (bool, string) {
		return strings.Contains(up.Output(), "ready; Ctrl-C ends it"), up.Output()
	})
	m := up.Manifest()
	b.visit(m.Managers[0].REST + "/")
	b.until("a browser is led to the console", "location.pathname === '/console/'")
	b.shows("Nothing: everything is well.")
	b.shows("no users: open")
	picture(b, "overview")
	b.press("2", false)
	b.shows("Managers: 3 of 3 answer")
	b.shows("Indexers: 3 of 3 active")
	see(b, "processes")
	b.press("3", false)
	b.shows("airports_by_country")
	b.click("airports_by_country")
	b.shows("CREATE INDEX airports_by_country ON")
	b.until("every fact has a value", "[...document.querySelectorAll('dl.facts dd')].every((d) => d.textContent)")
	picture(b, "indexes")
	b.press("4", false)
	b.until("each slice has a place", "document.querySelectorAll('.matrix td .word.good').length === 24")
	picture(b, "placement")
	b.press("5", false)
	b.shows("none: scans see everything")
	b.until("there is a line", "document.querySelector('svg.chart polyline')")
	see(b, "freshness")
	b.press("6", false)
	b.until("each vbucket is streamed", "document.querySelectorAll('.heat > button.good').length === 128")
	b.click("17")
	b.shows("incarnation")
	picture(b, "streams")
	scans(b)
	pages(b)
	groups(b)
	formCancels(b, up)
	split(b)
	statements(b)
	happened(b)
	loaded(b)
	cancelled(b, up)
	narrow(b)
	b.do("document.documentElement.setAttribute('data-theme', 'light')")
	leaderless(b, up)
	quiet(b)
}

// leaderless tests that, without a leader, nothing is shown that only a leader knows.
func leaderless(b *browser, up *testcluster.Cluster) {
	b.t.Helper()
	m := up.Manifest().Managers
	all := func(s syscall.Signal) {
		for _, other := range m[1:] {
			if err := syscall.Kill(other.PID, s); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	all(syscall.SIGSTOP)
	defer all(syscall.SIGCONT)
	b.do("location.hash = '#/'")
	b.shows("3, state unknown")
	b.until("its streams are unknown",
		"document.querySelector('[aria-label=Buckets] tbody').innerText.includes('unknown')")
	see(b, "leaderless")
}

// scans tests a scan by the form: its rows, and the note that these are all.
func scans(b *browser) {
	b.t.Helper()
	b.press("Escape", false)
	b.do("document.activeElement.blur()")
	b.press("7", false)
	b.until("the indexes can be chosen", "document.querySelectorAll('#index option').length === 4")
	b.do(`(() => { const s = document.querySelector('#index');
		s.value = [...s.options].find((o) => o.textContent.includes('airports_by_country')).value;
		s.dispatchEvent(new Event('change')); })()`)
	b.do(`(() => { const s = document.querySelector('[data-row="0"] [data-part=op]');
		s.value = 'is';
		s.dispatchEvent(new Event('change')); })()`)
	b.typeIn(`[data-row="0"] [data-part=low]`, "FR")
	b.do(`(() => { const s = document.querySelector('#consistency'); s.value = 'session'; })()`)
	b.typeIn("#limit", "5")
	b.press("Enter", true)
	b.shows("airport::LFKJ")
	b.shows("The limit of 5 rows was reached")
	b.shows("How it went")
	b.shows("slices may hold rows")
	b.click("Count")
	b.until("the number of entries", "/^\\d+ entries$/.test((document.querySelector('.figure') || {}).textContent)")
	b.click("Scan")
	b.shows("How it went")
	picture(b, "scan")
}

// pages tests paging with cursors, and how to continue after a cursor's snapshot is gone.
func pages(b *browser) {
	b.t.Helper()
	ids := `[...document.querySelectorAll('[aria-label=Rows] tbody tr')].map((r) => r.lastChild.textContent)`
	b.typeIn("#limit", "70")
	b.click("Scan")
	b.until("the first page", ids+".length === 70")
	b.do("window.seen = " + ids)
	b.click("Next page")
	b.shows("Page 2: rows 71 to 140")
	b.do("window.seen.push(..." + ids + ")")
	expire(b)
	b.click("Next page")
	b.shows("The state of the previous pages is no longer kept")
	b.until("what is seen stays", ids+".length === 70")
	b.click("Continue in the newest state")
	b.shows("Page 3: row")
	b.shows("This is the last page.")
	b.until("no row is missing, and none there twice", `(() => { const all = [...window.seen, ...`+ids+`];
		return all.length === 141 && new Set(all).size === 141; })()`)
}

// groups tests groups of an index's entries, which the indexers count and sum, and the equal result on the command
// line.
func groups(b *browser) {
	b.t.Helper()
	b.do(`document.querySelector('[data-group="0"]').click()`)
	b.click("Add an aggregate")
	b.click("Add an aggregate")
	b.do(`(() => { const s = document.querySelectorAll('[data-aggregate] [data-part=op]')[1];
		s.value = 'min';
		s.dispatchEvent(new Event('change'));
		document.querySelectorAll('[data-aggregate] [data-part=component]')[1].value = '1'; })()`)
	b.typeIn("#limit", "5")
	b.click("Scan")
	b.until("one group, with its figures", `(() => {
		const of = (at) => [...document.querySelectorAll('[aria-label=Rows] ' + at)].map((c) => c.textContent).join(' | ');
		return of('th') === 'iso_country | count(*) | min(name)' && of('td') === '"FR" | 141 | "Abbeville"'; })()`)
	b.shows("--group-by 'iso_country' --aggregate 'count(*)' --aggregate 'min(name)'")
	b.shows("1 group")
	see(b, "groups")
	b.click("Count")
	b.until("how many groups", "document.querySelector('.figure').textContent === '1 group'")
	b.until("each key once says nothing of groups", "document.querySelector('#distinct').disabled")
	for range 2 {
		b.click("Remove")
	}
	b.do(`document.querySelector('[data-group="0"]').click()`)
	b.until("rows again", "!document.querySelector('#distinct').disabled")
}

// expire makes the next request get the answer of a minute later, when the cursor's snapshot is no longer kept. That
// the snapshot does expire is tested by TestExpiredCursors of package scan.
func expire(b *browser) {
	b.t.Helper()
	b.do(`(() => { const real = window.fetch;
		window.fetch = (path, how) => {
			if (!path.endsWith(':scan')) return real(path, how);
			window.fetch = real;
			return Promise.resolve(new Response(JSON.stringify({code: 'CURSOR_EXPIRED', status: 410, detail: 'gone'}),
				{status: 410, headers: {'Content-Type': 'application/problem+json'}}));
		};
	})()`)
}

// formCancels tests that the form's button cancels a waiting scan, at the indexers too, and that the next scan works.
func formCancels(b *browser, up *testcluster.Cluster) {
	b.t.Helper()
	at := unwritten(b, up)
	b.do(fmt.Sprintf(`(() => { const real = window.fetch;
		window.fetch = (path, how) => {
			if (!path.endsWith(':scan')) return real(path, how);
			window.fetch = real;
			return real(path, {...how, body: JSON.stringify({consistency: 'at_plus', tokens: [{vbuuid: %q, seqno: %d}]})});
		};
	})()`, strconv.FormatUint(at.VBUUID, 10), at.Seqno))
	const running = `fetch('/v1/scans').then((r) => r.json()).then((all) => all.scans.some((s) => s.consistency === 'at_plus'))`
	b.click("Scan")
	b.until("it runs", running)
	b.click("Cancel")
	b.shows("Cancelled: the indexers have ended the scan.")
	b.until("nothing of it runs", running+".then((some) => !some)")
	b.click("Scan")
	b.shows("How it went")
}

// statements tests the caret at an error, a completed word, and an index created.
func statements(b *browser) {
	b.t.Helper()
	b.do("document.activeElement.blur()")
	b.press("8", false)
	b.typeIn("#statement", "CREATE INDEX bad ON world(name,, x)")
	b.press("Enter", true)
	b.shows("SYNTAX_ERROR: line 1, column 32")
	b.shows("Correct the statement")
	b.until("what is wrong is selected", "document.querySelector('#statement').selectionStart === 31")
	b.shows("CREATE INDEX bad ON world(name,, x)\n")
	see(b, "statements")
	b.typeIn("#statement", "CREATE INDEX by_type ON wor")
	b.shows("bucket or collection")
	b.press("Tab", false)
	b.until("the name is completed", "document.querySelector('#statement').value === 'CREATE INDEX by_type ON world'")
	b.typeIn("#statement", "CREATE INDEX by_type ON world(type)")
	b.click("Dry run")
	b.shows("Nothing was done. The result would be")
	b.shows("i1: ")
	b.press("Enter", true)
	b.until("it is done", `[...document.querySelectorAll('a')].some((a) => a.textContent === 'world/by_type')`)
	b.do("document.activeElement.blur()")
	b.press("3", false)
	b.until("it is built", `[...document.querySelectorAll('tr')].some((r) => r.textContent.includes('by_type') &&
		r.textContent.includes('ready'))`)
	b.click("by_type")
	b.click("Drop…")
	b.until("nothing is dropped yet", "document.querySelector('dialog button.danger').disabled")
	b.typeIn("#dropname", "by_type")
	b.do("document.querySelector('dialog button.danger').click()")
	b.until("it is gone", `!document.querySelector('dialog') &&
		![...document.querySelectorAll('tr')].some((r) => r.textContent.includes('by_type'))`)
}

// happened tests that the view of events shows what was done and by which user.
func happened(b *browser) {
	b.t.Helper()
	b.press("9", false)
	b.shows("index world/by_type created: CREATE INDEX by_type ON world(type)")
	b.until("who did it", `[...document.querySelectorAll('.events li')].some((r) =>
		r.textContent.includes('by_type created') && r.textContent.includes('by anonymous'))`)
	b.shows("by the cluster itself")
	b.do("scrollTo(0, 0)")
	picture(b, "timeline")
}

// split tests that an index that is being split is one line. The answer is the real one, with what a split adds to
// it.
func split(b *browser) {
	b.t.Helper()
	b.do(`(() => { window.real = window.fetch;
		window.fetch = async (path, how) => {
			const answer = await window.real(path, how);
			if (!path.startsWith('/v1/indexes?')) return answer;
			const list = await answer.json();
			const was = list.indexes.find((i) => i.name === 'places_by_name');
			was.split = {id: '77', num_partition: 16, state: 'backfill', progress: 41};
			list.indexes.push({...was, id: '77', replaces: was.id, split: undefined, num_partition: 16});
			return new Response(JSON.stringify(list), {status: 200, headers: {'Content-Type': 'application/json'}});
		};
	})()`)
	b.do("document.activeElement.blur()")
	b.press("3", false)
	b.shows("being split 41 %")
	b.until("it is one line", `[...document.querySelectorAll('tbody tr')].filter((r) =>
		r.textContent.includes('places_by_name')).length === 1`)
	b.click("places_by_name")
	b.shows("index 77 of 16 slices is backfill, 41 %")
	b.do("window.fetch = window.real")
}

// loaded tests that the view shows earlier scans at once, and scans made while it is open as rates.
func loaded(b *browser) {
	b.t.Helper()
	b.press("0", false)
	b.shows("Indexes, the busiest first")
	b.until("scans of before are there", `(() => {
		const row = [...document.querySelectorAll('[aria-label="Times in the last hour"] tbody tr')].find((r) =>
			r.textContent.includes('scans, session'));
		return row && [1, 3, 5].every((i) => /[1-9]/.test(row.children[i].textContent)) &&
			document.querySelector('svg[aria-label^="Scans;"] polyline') &&
			document.querySelector('svg[aria-label^="99th percentile; "][aria-label*="DDL: "] polyline');
	})()`)
	b.until("scans are a rate", `(async () => {
		await fetch('/v1/indexes/world/places_by_name:scan', {method: 'POST', body: '{"limit":3}',
			headers: {'Content-Type': 'application/json'}}).then((r) => r.text());
		const row = [...document.querySelectorAll('tr')].find((r) => r.textContent.includes('world/places_by_name'));
		return row && /[1-9]/.test(row.children[1].textContent);
	})()`)
	picture(b, "load")
}

// cancelled tests that a button cancels a scan that waits for a write that does not exist, and that the scan's client
// gets the reason.
func cancelled(b *browser, up *testcluster.Cluster) {
	b.t.Helper()
	at := unwritten(b, up)
	ended := make(chan error, 1)
	go func() { // repeated: each scan waits for 10 s
		_, err := up.Client().Count(b.t.Context(), client.Ref("world", "world_ids"), v1.ScanRequest{Consistency: "at_plus",
			Tokens: []v1.Token{at}})
		ended <- err
	}()
	b.until("it runs, and is ended", `(() => {
		const row = [...document.querySelectorAll('tr')].find((r) => r.querySelector('button') &&
			r.textContent.includes('world/world_ids'));
		if (row && !row.querySelector('button').disabled) row.querySelector('button').click();
		return document.body.innerText.includes('is cancelled; its client gets an error');
	})()`)
	var err error
	select {
	case err = <-ended:
	case <-time.After(patience):
	}
	var problem *wire.Problem
	if !errors.As(err, &problem) || problem.Code != errcode.ScanCancelled {
		b.t.Errorf("the scan ends with %v", err)
	}
}

// unwritten returns the token of a write to vbucket 0 that does not exist: a scan waits for it for 10 s.
func unwritten(b *browser, up *testcluster.Cluster) v1.Token {
	b.t.Helper()
	rows, err := up.Client().Scan(b.t.Context(), client.Ref("world", "world_ids"), v1.ScanRequest{Limit: 1,
		WantTimestamp: true})
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() { // to its end
	}
	end, err := rows.End()
	if err != nil {
		b.t.Fatal(err)
	}
	at := end.Timestamp.Vector[0]
	return v1.Token{VBUUID: at.VBUUID, Seqno: at.Seqno + 1_000_000}
}

// narrow tests that no view is wider than a telephone, light and dark.
func narrow(b *browser) {
	b.t.Helper()
	b.size(400, 800)
	everyView(b, func(view string) {
		b.until("it is not wider than the window: "+view, "document.documentElement.scrollWidth <= 400")
		see(b, "narrow-"+view)
	})
	b.do("location.hash = '#/indexes'")
	b.shows("airports_by_country")
	b.scheme("dark")
	b.until("it is dark", "getComputedStyle(document.body).backgroundColor === 'rgb(18, 22, 28)'")
	picture(b, "narrow")
	b.size(1280, 860)
	everyView(b, func(view string) { see(b, "dark-"+view) })
	b.do("document.activeElement.blur()")
	b.press("d", false)
	b.until("the user's choice counts more", "getComputedStyle(document.body).backgroundColor === 'rgb(245, 246, 248)'")
}

// everyView visits each view, and waits until it shows something.
func everyView(b *browser, then func(view string)) {
	b.t.Helper()
	var views []string
	if err := b.eval("[...document.querySelectorAll('nav a')].map((a) => a.getAttribute('data-path'))",
		&views); err != nil || len(views) != 10 {
		b.t.Fatalf("views %q, %v", views, err)
	}
	for _, view := range views {
		b.do(fmt.Sprintf("location.hash = '#/%s'", view))
		b.until("the view "+view, fmt.Sprintf(`document.querySelector('nav a[aria-current]').dataset.path === %q &&
			document.querySelector('.view').innerText.length > 40 &&
			!document.body.innerText.includes('Asking the cluster…')`, view))
		then(cmp.Or(view, "overview"))
	}
}

// TestSecured tests TLS and users: no access without a password, a session has its user's permissions, and sessions
// end.
func TestSecured(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	dir := t.TempDir()
	up := testcluster.Start(t, dir, "--tls", "--managers", "3", "--kv", "1", "--indexers", "1")
	ctx := t.Context()
	c := up.Client()
	for _, u := range [][3]string{{"root", "admin", rootPassword}, {"reader", "read", readerPassword}} {
		if _, err := c.PutUser(ctx, u[0], v1.UserRequest{Role: u[1], Password: u[2], New: true}); err != nil {
			t.Fatal(err)
		}
	}
	st, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	managers := up.Manifest().Managers
	leads := slices.IndexFunc(managers, func(m localcluster.ManagerEntry) bool { return m.ID == st.Leader.ID })
	follower := managers[(leads+1)%len(managers)].REST
	b.visit(follower + "/console/")
	b.shows("This cluster has users.")
	see(b, "login")
	login(b, "reader", "a-wrong-password-1")
	b.shows("UNAUTHENTICATED")
	b.do("document.querySelector('#name').value = ''")
	login(b, "reader", readerPassword)
	b.shows("role read")
	b.shows("Nothing: everything is well.")
	var script string
	if err := b.eval("document.cookie", &script); err != nil || script != "" {
		t.Errorf("a script can read %q, %v", script, err)
	}
	cookie(b)
	policy(b)
	b.press("8", false)
	b.shows("running statements needs role ddl")
	b.do("sessionStorage.setItem('statement', 'CREATE INDEX of_the_reader ON world(x)')")
	b.click("Log out")
	b.shows("This cluster has users.")
	b.until("nothing is left of what he wrote", "sessionStorage.getItem('statement') === null")
	b.until("the cookie is gone, and nothing is let in", `fetch('/v1/status',
		{headers: {'Tidemark-Console': '1'}}).then((r) => r.status === 401)`)
	login(b, "root", rootPassword)
	b.shows("role admin")
	b.press("8", false)
	b.typeIn("#statement", "CREATE INDEX by_name ON world(name)")
	b.press("Enter", true)
	b.shows("world/by_name")
	b.do("document.activeElement.blur()")
	b.press("9", false)
	b.shows("by root")
	revoked := 0
	tokens, err := c.Tokens(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tokens {
		if x.User == "root" {
			if err := c.RevokeToken(ctx, x.ID); err != nil {
				t.Fatal(err)
			}
			revoked++
		}
	}
	if revoked != 1 || len(tokens) != 1 {
		t.Errorf("%d of %d sessions are root's, want the one that has not ended", revoked, len(tokens))
	}
	b.do("location.hash = '#/'")
	b.shows("This cluster has users.") // its session was revoked
	login(b, "reader", readerPassword)
	b.shows("role read")
	b.until("nothing is left of what another one wrote", "sessionStorage.getItem('statement') === null")
	quiet(b)
}

// login fills in and submits the form.
func login(b *browser, user, password string) {
	b.t.Helper()
	b.typeIn("#name", user)
	b.typeIn("#password", password)
	b.press("Enter", false)
}

// cookie tests the attributes of the session's cookie.
func cookie(b *browser) {
	b.t.Helper()
	var out struct {
		Cookies []struct {
			Name, SameSite, Path string
			HTTPOnly             bool `json:"httpOnly"`
			Secure, Session      bool
		}
	}
	b.must("Network.getCookies", nil, &out)
	if len(out.Cookies) != 1 {
		b.t.Fatalf("cookies: %+v", out.Cookies)
	}
	c := out.Cookies[0]
	if !strings.HasPrefix(c.Name, "__Host-tidemark-") || c.SameSite != "Strict" || c.Path != "/" || !c.HTTPOnly ||
		!c.Secure || c.Session {
		b.t.Errorf("%+v", c)
	}
}

// policy tests that the policy blocks injected code. TestSessions of package manager tests that a cookie alone gives
// no access: a browser that gets a 401 without the console's header prompts for a password.
func policy(b *browser) {
	b.t.Helper()
	b.until("the policy lets nothing be written into the page", `(() => {
		try { document.body.innerHTML = '<b>x</b>'; return false; } catch (e) { return e instanceof TypeError; } })()`)
	b.complaints() // discard the complaint about that
}

// quiet checks that no page has thrown an exception, logged an error, or violated the policy.
func quiet(b *browser) {
	b.t.Helper()
	if said := b.complaints(); len(said) > 0 {
		b.t.Errorf("pages complain: %s", strings.Join(said, "\n"))
	}
}

// see saves a screenshot in the folder that TIDEMARK_PICTURES names, for inspection.
func see(b *browser, name string) {
	b.t.Helper()
	if dir := os.Getenv("TIDEMARK_PICTURES"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), b.shot(true), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

// picture writes a picture of docs/console.md, with few colours.
func picture(b *browser, name string) {
	b.t.Helper()
	see(b, name)
	if !*pictures {
		return
	}
	img, err := png.Decode(bytes.NewReader(b.shot(false)))
	if err != nil {
		b.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, fewColours(img)); err != nil {
		b.t.Fatal(err)
	}
	if out.Len() > maxPicture {
		b.t.Errorf("picture %s has %d bytes, want at most %d", name, out.Len(), maxPicture)
	}
	if err := os.WriteFile(filepath.Join("../../../../docs/console", name+".png"), out.Bytes(), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// fewColours keeps a picture's 64 most frequent colours, and replaces every other one by the nearest of them.
func fewColours(img image.Image) image.Image {
	seen, box := map[color.RGBA]int{}, img.Bounds()
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(img.At(x, y)).(color.RGBA) }
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			seen[at(x, y)]++
		}
	}
	var all []color.RGBA
	for c := range seen {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b color.RGBA) int {
		return cmp.Or(seen[b]-seen[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	var few color.Palette
	for _, c := range all[:min(len(all), 64)] {
		few = append(few, c)
	}
	out, index := image.NewPaletted(box, few), map[color.RGBA]uint8{}
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			c := at(x, y)
			n, ok := index[c]
			if !ok {
				n = uint8(few.Index(c))
				index[c] = n
			}
			out.SetColorIndex(x, y, n)
		}
	}
	return out
}
