"""Tables of the learned schedules for TV denoising."""
