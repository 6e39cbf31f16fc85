package gcpjwt

// ResetAppEngine forgets what the process knows of the app's keys, which in
// production belong to the one app that it is.
func ResetAppEngine() {
	appEngineCache.Purge()
	SigningMethodAppEngine.lastKeyID.Store(nil)
}
