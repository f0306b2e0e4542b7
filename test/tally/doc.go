// Command tally reads the logs of `go test -json` and says what they amount to.
//
//	tally [-allow-skips] [-rerun COMMAND] LOG...
//
// It prints the end of the output of every test that failed and the command that runs it again, every test that was skipped with its reason, and every package that has code
// but no test; then "passed N failed N skipped N" for the caller to add up. Its exit status is 1 if a test failed or a package
// has none, or if a test was skipped and skips are not allowed; 2 if a log could not be read.
package main
