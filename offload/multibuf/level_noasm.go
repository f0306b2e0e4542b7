//go:build !amd64 && !arm64

package multibuf

// levels: there are none for this architecture, only Generic.
var levels []level
