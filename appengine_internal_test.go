package gcpjwt

// ResetAppEngine forgets what the process knows of the app's keys and which calls hang, which
// in production belong to the one app that it is.
func ResetAppEngine() {
	appEngineCache.Purge()
	appEngineCalls = newAbandonable(cap(appEngineCalls.places))
	SigningMethodAppEngine.last.id.Store(nil)
}
