package offload

// NewRegistryWithin is NewRegistry with another limit on how long an engine may take, for engines that stall.
var NewRegistryWithin = newRegistry
