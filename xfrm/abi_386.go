package xfrm

// Native is the ABI of this program.
const Native = Align4
