// Package console is the web page that every manager serves at /console/: files that are part of the program, which
// ask the manager's own REST interface and nothing else.
//
// It promises that no page runs a script or style of another origin or written into the page (a strict content security
// policy), that nothing but GET and HEAD is answered here, and that it opens nothing that package api keeps closed: who
// is not let in there sees the form to log in. It never looks at credentials.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

// Path is where the console is.
const Path = "/console/"

//go:embed static
var embedded embed.FS

// Policy is the content security policy of all pages: files of this manager alone, no script or style within a page, no
// frame around it, no form that is sent by the browser itself, no text that becomes HTML.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// mediaTypes of the files there are.
func mediaTypes() map[string]string {
	return map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
		".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
}

// file is one that is served.
type file struct {
	media string
	etag  string
	body  []byte
}

// Handler serves the console at Path; the other paths are those of next. Browsers that ask for / are led to it.
func Handler(next http.Handler) (http.Handler, error) {
	files, err := load()
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch name, in := strings.CutPrefix(r.URL.Path, Path); {
		case in:
			serve(w, r, files, name)
		case r.URL.Path == strings.TrimSuffix(Path, "/") || r.URL.Path == "/" && asksForPage(r):
			http.Redirect(w, r, Path, http.StatusTemporaryRedirect)
		default:
			next.ServeHTTP(w, r)
		}
	}), nil
}

// load reads the files that are part of the program.
func load() (map[string]*file, error) {
	files, types := map[string]*file{}, mediaTypes()
	err := fs.WalkDir(embedded, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := embedded.ReadFile(name)
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
		media, ok := types[path.Ext(name)]
		if !ok {
			return fmt.Errorf("console: %s: no media type is known for it", name)
		}
		sum := sha256.Sum256(body)
		files[strings.TrimPrefix(name, "static/")] = &file{media: media, body: body,
			etag: `"` + hex.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err == nil && files["index.html"] == nil {
		err = errors.New("console: no index.html")
	}
	return files, err
}

// asksForPage reports whether a person's browser asks.
func asksForPage(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html")
}

func serve(w http.ResponseWriter, r *http.Request, files map[string]*file, name string) {
	h := w.Header()
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // asked for again each time: another version of the program has other files
	if name == "" {
		name = "index.html"
	}
	f := files[name]
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the console is only read", http.StatusMethodNotAllowed)
	case f == nil:
		http.Error(w, "the console has no such file", http.StatusNotFound)
	default:
		h.Set("Content-Type", f.media)
		h.Set("ETag", f.etag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(f.body))
	}
}
