"""Training of backbones on images: settings, images, batches, augmentation, and the trainee that the loop drives."""
