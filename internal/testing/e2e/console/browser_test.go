package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemark/internal/testing/need"
)

// patience is the longest that any action in a browser may take; it detects hangs.
const patience = 2 * time.Minute

// browser is a real headless Chromium, driven by the DevTools protocol over pipes: it ends with the test's process,
// however that ends.
type browser struct {
	t   *testing.T
	in  *bufio.Reader // messages end with a zero byte
	out io.Writer
	ctx context.Context //nolint:containedctx // of the test

	mu      sync.Mutex
	next    int
	waiting map[int]chan reply
	session string
	// said holds what the pages reported: exceptions, errors of the console, and violations of the policy.
	said []string
	lost error
}

// reply is an answer or an event of the protocol.
type reply struct {
	ID        int             `json:"id"`
	Method    string          `json:"method"`
	SessionID string          `json:"sessionId"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// newBrowser starts Chromium with one page.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path := need.Tool(t, "chromium", "chromium", "chromium-browser")
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
		"--disable-extensions", "--disable-background-networking", "--disable-component-update", "--no-first-run",
		"--no-default-browser-check", "--hide-scrollbars", "--ignore-certificate-errors", "--lang=en-US",
		"--remote-debugging-pipe", "--user-data-dir="+filepath.Join(t.TempDir(), "profile"), "about:blank")
	cmd.Env = append(os.Environ(), "TZ=UTC", "LANG=C.UTF-8", "HOME="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.Stderr, cmd.ExtraFiles = &said, []*os.File{theirIn, theirOut}
	err = errors.Join(cmd.Start(), theirIn.Close(), theirOut.Close())
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, ctx: t.Context(), in: bufio.NewReaderSize(ourIn, 1<<20), out: ourOut,
		waiting: map[int]chan reply{}}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its own process group
		_ = cmd.Wait()
		_, _ = ourOut.Close(), ourIn.Close()
		if t.Failed() {
			t.Logf("Chromium said:\n%.4000s", said.String())
		}
	})
	go b.read()
	b.open()
	return b
}

// open opens the page in which the test works.
func (b *browser) open() {
	b.t.Helper()
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.must("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.must("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.mu.Lock()
	b.session = attached.SessionID
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.must(domain+".enable", nil, nil)
	}
	b.must("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	b.size(1280, 860)
}

// read reads Chromium's messages until its end.
func (b *browser) read() {
	for {
		var m reply
		text, err := b.in.ReadBytes(0)
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		if err != nil {
			b.mu.Lock()
			b.lost = err
			for _, w := range b.waiting {
				close(w)
			}
			b.waiting = map[int]chan reply{}
			b.mu.Unlock()
			return
		}
		b.mu.Lock()
		if w := b.waiting[m.ID]; m.ID != 0 && w != nil {
			delete(b.waiting, m.ID)
			w <- m
		}
		b.complained(&m)
		b.mu.Unlock()
	}
}

// complained records a page's complaint. An answer with an error status is not the page's fault. The caller holds
// b.mu.
func (b *browser) complained(m *reply) {
	switch m.Method {
	case "Runtime.exceptionThrown":
		b.said = append(b.said, "exception: "+string(m.Params))
	case "Log.entryAdded":
		var e struct {
			Entry struct {
				Source, Level, Text string
			} `json:"entry"`
		}
		if json.Unmarshal(m.Params, &e) == nil && e.Entry.Level == "error" && e.Entry.Source != "network" {
			b.said = append(b.said, e.Entry.Source+": "+e.Entry.Text)
		}
	case "Runtime.consoleAPICalled":
		var c struct {
			Type string `json:"type"`
		}
		if json.Unmarshal(m.Params, &c) == nil && c.Type == "error" {
			b.said = append(b.said, "console.error: "+string(m.Params))
		}
	}
}

// complaints returns the pages' complaints since the last call.
func (b *browser) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	said := b.said
	b.said = nil
	return said
}

// call makes one call of the protocol.
func (b *browser) call(method string, params, result any) error {
	answer := make(chan reply, 1)
	b.mu.Lock()
	if b.lost != nil {
		b.mu.Unlock()
		return b.lost
	}
	b.next++
	id := b.next
	b.waiting[id] = answer
	request := map[string]any{"id": id, "method": method, "params": params}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	text, err := json.Marshal(request)
	if err == nil {
		_, err = b.out.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return errors.New("the browser is gone")
		case m.Error != nil:
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		case result != nil:
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s: no answer after %s", method, patience)
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

func (b *browser) must(method string, params, result any) {
	b.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	if err := b.call(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// eval evaluates an expression in the page and decodes its JSON value. It returns an error if the expression throws
// or the page is loading.
func (b *browser) eval(expression string, into any) error {
	var out struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Text      string `json:"text"`
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true,
		"awaitPromise": true}, &out)
	switch {
	case err != nil:
		return err
	case out.Exception != nil:
		return fmt.Errorf("%s: %s", out.Exception.Text, out.Exception.Exception.Description)
	case into == nil || len(out.Result.Value) == 0:
		return nil
	}
	return json.Unmarshal(out.Result.Value, into)
}

// do evaluates an expression that must not fail.
func (b *browser) do(expression string) {
	b.t.Helper()
	if err := b.eval(expression, nil); err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
}

// until waits until an expression of the page is true.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var yes bool
		err := b.eval("(async () => Boolean(await ("+expression+")))()", &yes)
		if err == nil && yes {
			return
		}
		if time.Now().After(deadline) {
			var text string
			_ = b.eval("document.body.innerText", &text)
			b.t.Fatalf("%s: not after %s (%v); the page shows:\n%s\ncomplaints: %q", what, patience, err, text, b.complaints())
		}
		time.Sleep(50 * time.Millisecond) // a poll of a condition
	}
}

// shows waits until the page shows a text.
func (b *browser) shows(text string) {
	b.t.Helper()
	quoted, _ := json.Marshal(text)
	b.until("the page shows "+text, "document.body.innerText.includes("+string(quoted)+")")
}

// visit loads an address.
func (b *browser) visit(url string) {
	b.t.Helper()
	b.must("Page.navigate", map[string]any{"url": url}, nil)
	b.until("the page is there", "document.readyState === 'complete' && location.href.startsWith('http')")
}

// typeIn replaces a field's text. It sends key events inside the page: a real key is lost while one of the browser's
// own windows (such as "save the password?") has the focus.
func (b *browser) typeIn(selector, text string) {
	b.t.Helper()
	where, _ := json.Marshal(selector)
	what, _ := json.Marshal(text)
	b.until("there is "+selector, "document.querySelector("+string(where)+")")
	b.do("(() => { const n = document.querySelector(" + string(where) + "); n.focus(); n.value = " + string(what) + ";" +
		"n.dispatchEvent(new Event('input', {bubbles: true})); })()")
}

// click clicks the first button or link with the text.
func (b *browser) click(text string) {
	b.t.Helper()
	quoted, _ := json.Marshal(text)
	find := "[...document.querySelectorAll('main button, main a, header button')].find((n) => n.textContent.trim() === " +
		string(quoted) + " && !n.disabled && n.offsetParent)"
	b.until("there is a button "+text, find)
	b.do(find + ".click()")
}

// press presses a key; Enter submits the form of a field.
func (b *browser) press(key string, ctrl bool) {
	b.t.Helper()
	quoted, _ := json.Marshal(key)
	b.do(fmt.Sprintf(`(() => { const n = document.activeElement || document.body;
		const on = n.dispatchEvent(new KeyboardEvent('keydown', {key: %s, ctrlKey: %t, bubbles: true, cancelable: true}));
		if (on && %s === 'Enter' && !%t && n.form) n.form.requestSubmit(); })()`, quoted, ctrl, quoted, ctrl))
}

// size sets the window's size and the preferred colour scheme, light or dark.
func (b *browser) size(width, height int) {
	b.t.Helper()
	b.must("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
		"mobile": false}, nil)
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	b.must("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme",
		"value": name}}}, nil)
}

// shot returns a screenshot of the window, or of the whole page, as PNG.
func (b *browser) shot(whole bool) []byte {
	b.t.Helper()
	var out struct {
		Data string `json:"data"`
	}
	of := map[string]any{"format": "png"}
	if whole {
		var page struct {
			Size struct{ Width, Height float64 } `json:"cssContentSize"`
		}
		b.must("Page.getLayoutMetrics", nil, &page)
		of["captureBeyondViewport"] = true
		of["clip"] = map[string]any{"x": 0, "y": 0, "width": page.Size.Width, "height": min(page.Size.Height, 4000),
			"scale": 1}
	}
	b.must("Page.captureScreenshot", of, &out)
	png, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}
