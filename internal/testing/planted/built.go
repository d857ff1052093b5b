package planted

// Built reports whether this program has the patches.
const Built = false
