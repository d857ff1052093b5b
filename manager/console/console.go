// Package console is the web page that every manager serves at /console/: files embedded in the program, which use
// only the manager's own REST interface.
//
// Pages use no scripts or styles of other origins, and no inline ones (a strict content security policy). Only GET and
// HEAD are answered. The files of the console are public, but all data come from package api with its access control: a
// user without access sees the login form. The package handles no credentials.
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

// Path is the console's path.
const Path = "/console/"

//go:embed static
var embedded embed.FS

// Policy is the content security policy of all pages: only files of this manager, no inline scripts or styles, no
// frames around it, no forms submitted by the browser, and no text converted to HTML.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// mediaTypes returns the media types of the embedded files, by extension.
func mediaTypes() map[string]string {
	return map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
		".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
}

// file is an embedded file.
type file struct {
	media string
	etag  string
	body  []byte
}

// Handler serves the console at Path, and next at all other paths. Browsers that request / are redirected to the
// console.
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

// load reads the embedded files.
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
			return fmt.Errorf("console: file %s has no known media type", name)
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

// asksForPage reports whether a browser requests a page, as opposed to a program that uses the REST interface.
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
	h.Set("Cache-Control", "no-cache") // revalidated at each request: another version of the program has other files
	if name == "" {
		name = "index.html"
	}
	f := files[name]
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the console accepts only GET and HEAD", http.StatusMethodNotAllowed)
	case f == nil:
		http.Error(w, "the console has no file of this name", http.StatusNotFound)
	default:
		h.Set("Content-Type", f.media)
		h.Set("ETag", f.etag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(f.body))
	}
}
