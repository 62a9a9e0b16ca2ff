"""tritonserver as a child process: started, watched, restarted and cleaned up after."""
