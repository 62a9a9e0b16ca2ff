"""From a ChatTTS checkpoint to a servable model repository. Nothing here runs while serving."""
