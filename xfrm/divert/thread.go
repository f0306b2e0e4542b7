package divert

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onThreadOfItsOwn runs f on a goroutine whose thread ends with it, so that f may change what is the thread's own, such as its network
// namespace. It is never the main thread, which the runtime cannot end: /proc/self would show its namespace as the process's.
func onThreadOfItsOwn(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		// As long as the main thread is held here, the next goroutine is on another.
		settled := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(settled)
			f()
		}()
		<-settled
	}()
}
