// Package control is how the culvert commands speak to a running gateway: HTTP with JSON over a Unix socket that only its
// owner may open. The documents are the types below; `culvert status --json` prints them unchanged.
package control
